// A browser starts no worker for a page that is opened from a folder. There the search runs in a hidden frame, which
// this puts in the worker's place: the theme's script finds the two methods and the event of a worker that it uses.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((ready, failed) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.src = new URL(url, location.href);
          script.onload = () => ready(inside);
          script.onerror = () => failed(new Error(`cannot load ${url}`));
          inside.document.body.append(script);
        };
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      const inside = await this.inside;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
  };
}
