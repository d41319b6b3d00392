// Search in pages opened from disk: browsers refuse to start a worker from a file, so its script runs in a hidden frame.
// A script's address in, an object with the interface of a Worker out.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.waiting = [];
      this.scope.importScripts = (...addresses) =>
        addresses.reduce((previous, next) => previous.then(() => this.load(next)), Promise.resolve());
      this.scope.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.load(String(address)).then(() => {
        const messages = this.waiting;
        this.waiting = null;
        messages.forEach((data) => this.postMessage(data));
      });
    }

    load(address) {
      return new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script");
        script.src = new URL(address, document.baseURI);
        script.onload = resolve;
        script.onerror = reject;
        this.scope.document.body.append(script);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }));
    }

    terminate() {
      this.scope.frameElement.remove();
    }
  };
}
