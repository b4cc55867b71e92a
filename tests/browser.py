"""A headless Chromium, spoken to over a pipe: enough of its protocol to open a page, run JavaScript in it and take a picture."""
import base64, fcntl, json, os, shutil, subprocess, time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

def find():
    "A browser's path, or None."
    return next(filter(None, map(shutil.which, (os.environ.get("ALPHABOOK_BROWSER", ""), *NAMES))), None)

class Browser:
    "One browser with one page."
    def __init__(self, folder):
        mine, its = os.pipe(), os.pipe()                       # we write to the first, and read from the second
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1000,800",
                 f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        def places():                                          # it reads from 3 and writes to 4
            for fd, want in [(fcntl.fcntl(fd, fcntl.F_DUPFD, 10), want) for fd, want in ((mine[0], 3), (its[1], 4))]: os.dup2(fd, want)
        self.p = subprocess.Popen([find(), *flags], pass_fds=(3, 4), preexec_fn=places, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(mine[0]); os.close(its[1])
        self.out, self.inp, self.n, self.session, self.log = os.fdopen(mine[1], "wb", 0), os.fdopen(its[0], "rb"), 0, None, []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"): self(f"{domain}.enable")

    def read(self):
        "One message."
        data = b""
        while (c := self.inp.read(1)) != b"\0":
            if not c: raise EOFError("the browser has ended")
            data += c
        return json.loads(data)

    def __call__(self, method, **params):
        "Call a method of the protocol; events that come meanwhile are kept."
        self.n += 1
        call = dict(id=self.n, method=method, params=params, **({"sessionId": self.session} if self.session else {}))
        self.out.write(json.dumps(call).encode() + b"\0")
        while (m := self.read()).get("id") != self.n: self.log.append(m)
        if "error" in m: raise RuntimeError(f"{method}: {m['error']}")
        return m["result"]

    def js(self, code):
        "The value of an expression, awaited."
        r = self("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r: raise RuntimeError(r["exceptionDetails"])
        return r["result"].get("value")

    def open(self, url):
        "Go to a page and wait until it is there; the status of its document."
        self.log.clear()
        self("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")
        return [m["params"]["response"]["status"] for m in self.log
                if m.get("method") == "Network.responseReceived" and m["params"]["type"] == "Document"][-1]

    def until(self, code, seconds=60):
        "Wait until an expression is true."
        begun = time.perf_counter()
        while not self.js(f"!!({code})"):
            assert time.perf_counter() - begun < seconds, f"not true: {code}"
            time.sleep(0.05)

    def complaints(self):  # but for mere advice
        "What the page wrote to the console, or was forbidden."
        return [m["params"] for m in self.log if m.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
                and m["params"].get("entry", {}).get("source") != "recommendation"]

    def addresses(self):
        "What the page asked the network for."
        return [m["params"]["request"]["url"] for m in self.log if m.get("method") == "Network.requestWillBeSent"]

    def picture(self, path):
        "A PNG of the page."
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot")["data"]))

    def close(self):
        try: self("Browser.close")
        except (EOFError, OSError): pass
        try: self.p.wait(20)
        except subprocess.TimeoutExpired: self.p.kill()
