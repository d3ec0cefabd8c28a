"use strict";
// Players that run together. Each source is one hidden video; each panel is a canvas that shows a part of a source.
// Panels are drawn only when every source has shown the same frame, so what stands side by side is always one frame.

const KEPT = 6; // frames of each source that are kept while the others catch up

class Source {
  constructor(data, mime, fps, frames, shown) {
    this.fps = fps;
    this.frames = frames;
    this.shown = new Map(); // frame → canvas
    this.spare = [];
    this.latest = -1;
    this.video = document.createElement("video");
    Object.assign(this.video, { muted: true, playsInline: true, preload: "auto", disableRemotePlayback: true });
    this.video.className = "hidden-video";
    this.video.setAttribute("aria-hidden", "true");
    this.video.tabIndex = -1;
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    this.video.src = URL.createObjectURL(new Blob([bytes], { type: mime }));
    for (const event of ["seeked", "loadeddata"]) this.video.addEventListener(event, shown);
    this.watch(shown);
  }

  watch(shown) {
    const look = () => {
      shown();
      this.watch(shown);
    };
    if (this.video.requestVideoFrameCallback) this.video.requestVideoFrameCallback(look);
    else requestAnimationFrame(look);
  }

  // Keeps the picture that the video shows now, under its own number. A callback may come late, when the video has gone
  // on: so the number is read off the picture itself (VideoFrame) where the browser can, and not off the callback.
  take() {
    if (this.video.readyState < 2 || this.video.seeking) return;
    let picture = this.video;
    let frame = Math.floor(this.video.currentTime * this.fps + 0.01);
    if (window.VideoFrame) {
      picture = new VideoFrame(this.video);
      frame = Math.round((picture.timestamp * this.fps) / 1e6);
    }
    frame = Math.min(Math.max(frame, 0), this.frames - 1);
    if (frame !== this.latest || !this.shown.has(frame)) this.keep(frame, picture);
    if (picture !== this.video) picture.close();
  }

  keep(frame, picture) {
    const canvas = this.shown.get(frame) || this.spare.pop() || document.createElement("canvas");
    canvas.width = this.video.videoWidth;
    canvas.height = this.video.videoHeight;
    canvas.getContext("2d", { willReadFrequently: true }).drawImage(picture, 0, 0);
    this.shown.delete(frame);
    this.shown.set(frame, canvas);
    if (this.shown.size > KEPT) {
      const oldest = this.shown.keys().next().value;
      this.spare.push(this.shown.get(oldest));
      this.shown.delete(oldest);
    }
    this.latest = frame;
  }

  go(frame) {
    this.video.currentTime = (frame + 0.5) / this.fps;
  }
}

class Players {
  constructor(element) {
    this.element = element;
    this.settings = JSON.parse(element.querySelector(".settings").textContent);
    this.frame = -1;
    this.wanted = null;
    this.playing = false;
    this.rate = 1;
    this.sources = [];
    this.sources = [...element.querySelectorAll(".data")].map((holder) => {
      const source = new Source(holder.textContent.trim(), "video/mp4", this.settings.fps, this.settings.frames, () => this.arrived());
      holder.remove();
      element.append(source.video);
      source.video.addEventListener("ended", () => this.ended());
      source.video.addEventListener("error", () => this.failed());
      return source;
    });
    this.panels = this.settings.panels.map((panel, n) => {
      const canvas = element.querySelectorAll("canvas.panel")[n];
      [canvas.width, canvas.height] = panel.crop.slice(2);
      return { ...panel, canvas, context: canvas.getContext("2d", { willReadFrequently: true }) };
    });
    this.difference = element.querySelector("canvas.difference");
    if (this.difference) {
      const pair = ["uncached", "planned"].map((label) => this.panels.find((panel) => panel.label === label));
      [this.difference.width, this.difference.height] = pair[0].crop.slice(2);
      this.pair = pair;
    }
    this.slider = element.querySelector("input[type=range]");
    this.gain = element.querySelector("select.gain");
    this.listen();
  }

  listen() {
    const element = this.element;
    const on = (name, action) => element.querySelector(`[data-do=${name}]`).addEventListener("click", action);
    on("play", () => this.toggle());
    on("back", () => this.step(-1));
    on("on", () => this.step(1));
    on("first", () => this.seek(0));
    on("last", () => this.seek(this.settings.frames - 1));
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    element.querySelector("select.rate").addEventListener("change", (event) => {
      this.rate = Number(event.target.value);
      for (const source of this.sources) source.video.playbackRate = this.rate;
    });
    if (this.gain) this.gain.addEventListener("change", () => this.compare());
  }

  // Some source shows a new frame. All are looked at, so that they are seen at one moment.
  arrived() {
    for (const source of this.sources) source.take();
    const held = this.sources.map((source) => source.shown);
    const common = [...held[0].keys()].filter((frame) => held.every((shown) => shown.has(frame)));
    if (this.playing && this.wanted === null) {
      const next = Math.max(...common.filter((frame) => this.sources.some((s) => s.latest === frame)), -1);
      if (next >= 0 && next !== this.frame) this.draw(next);
      this.align();
    } else if (this.wanted !== null && common.includes(this.wanted)) {
      const frame = this.wanted;
      this.wanted = null;
      this.draw(frame);
      if (this.playing) this.run();
    }
  }

  // While playing, a source that falls behind the first is let run a little faster, and one far off starts anew.
  align() {
    const lead = this.sources[0].latest;
    for (const source of this.sources.slice(1)) {
      const behind = lead - source.latest;
      const nudge = Math.abs(behind) > 1 ? Math.max(-0.3, Math.min(0.3, behind * 0.08)) : 0;
      source.video.playbackRate = this.rate * (1 + nudge);
      if (Math.abs(behind) > KEPT && Math.abs(behind) < this.settings.frames / 2) return this.restart(lead);
    }
  }

  restart(frame) {
    for (const source of this.sources) source.video.pause();
    this.seek(frame, true);
  }

  draw(frame) {
    this.frame = frame;
    for (const panel of this.panels) {
      const [left, top, width, height] = panel.crop;
      panel.context.drawImage(this.sources[panel.source].shown.get(frame), left, top, width, height, 0, 0, width, height);
    }
    this.compare();
    this.slider.value = String(frame);
    const seconds = (frame / this.settings.fps).toFixed(2);
    const words = `frame ${frame} of 0 to ${this.settings.frames - 1}, ${seconds} s`;
    this.slider.setAttribute("aria-valuetext", words);
    this.element.querySelector(".now").textContent = words;
    this.element.dispatchEvent(new CustomEvent("frame", { detail: frame, bubbles: true }));
  }

  // |planned − uncached|, enlarged by the gain, and its mean and largest value as shares of full scale.
  compare() {
    if (!this.difference || this.frame < 0) return;
    const { width, height } = this.difference;
    const [one, other] = this.pair.map((panel) => panel.context.getImageData(0, 0, width, height).data);
    const context = this.difference.getContext("2d");
    const out = context.createImageData(width, height);
    const gain = Number(this.gain.value);
    let sum = 0;
    let most = 0;
    for (let i = 0; i < one.length; i += 4) {
      for (let c = i; c < i + 3; c += 1) {
        const gap = Math.abs(one[c] - other[c]);
        sum += gap;
        if (gap > most) most = gap;
        out.data[c] = gap * gain;
      }
      out.data[i + 3] = 255;
    }
    context.putImageData(out, 0, 0);
    const share = (value) => `${((100 * value) / 255).toFixed(2)} %`;
    this.element.querySelector(".gap").textContent = `mean ${share(sum / (width * height * 3))}, largest ${share(most)}`;
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    this.playing = true;
    this.say();
    this.seek(this.frame >= this.settings.frames - 1 || this.frame < 0 ? 0 : this.frame, true);
  }

  // All sources stand at one frame: let them go at once.
  run() {
    for (const source of this.sources) source.video.playbackRate = this.rate;
    Promise.all(this.sources.map((source) => source.video.play())).catch(() => this.pause());
  }

  pause() {
    this.playing = false;
    for (const source of this.sources) source.video.pause();
    this.say();
    this.seek(Math.max(this.frame, 0));
  }

  step(count) {
    this.seek(Math.max(this.frame, 0) + count);
  }

  seek(frame, keep = false) {
    if (!keep && this.playing) {
      this.playing = false;
      for (const source of this.sources) source.video.pause();
      this.say();
    }
    this.wanted = Math.min(Math.max(frame, 0), this.settings.frames - 1);
    for (const source of this.sources) source.go(this.wanted);
    this.slider.value = String(this.wanted);
  }

  ended() {
    if (!this.playing || this.wanted !== null) return;
    if (!this.sources.every((source) => source.video.ended)) return;
    if (this.element.querySelector(".loop").checked) this.seek(0, true);
    else this.pause();
  }

  failed() {
    this.element.querySelector(".now").textContent = "this browser cannot play the video";
  }

  say() {
    const button = this.element.querySelector("[data-do=play]");
    button.textContent = this.playing ? "Pause" : "Play";
    button.setAttribute("aria-pressed", String(this.playing));
  }
}
