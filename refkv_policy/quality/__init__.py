"""What a plan costs in quality: metrics of a clip against the uncached run's, and the feature models they use.

`features`, `drift` and `tasks_bench` need torch; importing this package does not. A video is float32
(frames, height, width, 3), RGB in [0, 1].
"""
