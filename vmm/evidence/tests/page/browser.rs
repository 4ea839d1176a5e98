// SPDX-License-Identifier: AGPL-3.0-or-later
//! Pages in a real browser: no error on its console, nothing loaded, nothing wider than the screen, both themes, and paper.
//!
//! Chromium is driven through its debugging pipe, one JSON text a message with a zero byte behind it. `checks/report` installs it,
//! demands it with `CHAOS_REQUIRE_BROWSER`, and names a folder for pictures with `CHAOS_SCREENSHOTS`; `CHAOS_REPORT_PAGES` names a
//! folder of more pages to look at.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use chaoscontrol_evidence::page::html;
use serde_json::{Value, json};

use crate::samples::all;

/// A screen: name, width, height, whether it is a phone's, theme, medium.
const SCREENS: [(&str, u32, u32, bool, &str, &str); 5] = [
    ("phone", 360, 780, true, "light", "screen"),
    ("phone-dark", 390, 844, true, "dark", "screen"),
    ("desktop", 1280, 900, false, "light", "screen"),
    ("desktop-dark", 1280, 900, false, "dark", "screen"),
    ("paper", 794, 1123, false, "light", "print"),
];

/// Tallest picture that is taken.
const PICTURE_HEIGHT: f64 = 12_000.0;

struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    /// What the page did since it was opened: errors, and addresses that it asked for.
    complaints: Vec<String>,
    asked_for: Vec<String>,
    _profile: tempfile::TempDir,
}

fn program() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&folders).flat_map(|folder| names.map(|name| folder.join(name))).find(|path| path.is_file())
}

impl Browser {
    fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        // The pipe's ends are file descriptors 3 and 4 of the browser.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg("exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null")
            .arg(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a browser starts");
        let commands = child.stdin.take().expect("its input");
        let answers = BufReader::new(child.stdout.take().expect("its output"));
        let (complaints, asked_for) = (Vec::new(), Vec::new());
        let mut browser =
            Self { child, commands, answers, session: None, sent: 0, complaints, asked_for, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends a command and gives its result; what happens meanwhile is noted.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("the browser listens");
        loop {
            let heard = self.hear();
            if heard["id"] == json!(self.sent) {
                assert!(heard["error"].is_null(), "{method}: {}", heard["error"]);
                return heard["result"].clone();
            }
        }
    }

    fn hear(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.answers.read_until(0, &mut bytes).expect("the browser answers");
        bytes.pop();
        let heard: Value = serde_json::from_slice(&bytes).expect("JSON");
        let told = &heard["params"];
        match heard["method"].as_str() {
            Some("Log.entryAdded") => self.complaints.push(told["entry"]["text"].to_string()),
            Some("Runtime.consoleAPICalled" | "Runtime.exceptionThrown") => self.complaints.push(told.to_string()),
            Some("Network.requestWillBeSent") => self.asked_for.push(told["request"]["url"].to_string()),
            _ => {}
        }
        heard
    }

    fn open(&mut self, page: &Path) {
        self.complaints.clear();
        self.asked_for.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", page.display())}));
        while self.evaluate("document.readyState") != json!("complete") {}
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let result = self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    fn number(&mut self, expression: &str) -> f64 {
        self.evaluate(expression).as_f64().expect("a number")
    }

    fn screen(&mut self, (_, width, height, is_phone, theme, medium): (&str, u32, u32, bool, &str, &str)) {
        let scale = if is_phone { 2 } else { 1 };
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{"name": "prefers-color-scheme", "value": theme}]);
        self.call("Emulation.setEmulatedMedia", json!({"media": medium, "features": features}));
    }

    /// A picture of the whole page, as PNG.
    fn picture(&mut self) -> Vec<u8> {
        let width = self.number("document.documentElement.clientWidth");
        let height = self.number("document.documentElement.scrollHeight").min(PICTURE_HEIGHT);
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let taken = self.call("Page.captureScreenshot", json!({"captureBeyondViewport": true, "clip": clip}));
        plain(taken["data"].as_str().expect("data"))
    }

    fn pdf(&mut self) -> Vec<u8> {
        let printed = self.call("Page.printToPDF", json!({"printBackground": true, "preferCSSPageSize": false}));
        plain(printed["data"].as_str().expect("data"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let close = json!({"id": self.sent + 1, "method": "Browser.close"}).to_string() + "\0";
        let closed = self.commands.write_all(close.as_bytes()).and_then(|()| self.child.wait().map(drop));
        if closed.is_err() {
            drop(self.child.kill());
        }
    }
}

/// What Base64 text stands for (RFC 4648, section 4).
fn plain(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> = text.bytes().filter(|byte| *byte != b'=').map(digit).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}

/// The pages: the samples, and those of `CHAOS_REPORT_PAGES`.
fn pages(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut pages = Vec::new();
    for (name, report) in all() {
        let path = folder.join(format!("{name}.html"));
        std::fs::write(&path, html(&report)).expect("a page");
        pages.push((name.to_owned(), path));
    }
    if let Some(more) = std::env::var_os("CHAOS_REPORT_PAGES") {
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(more).expect("a folder of pages").map(|entry| entry.expect("an entry").path()).collect();
        found.retain(|path| path.extension().is_some_and(|kind| kind == "html"));
        found.sort();
        let name = |path: &PathBuf| path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
        pages.extend(found.into_iter().map(|path| (name(&path), path)));
    }
    pages
}

#[test]
fn pages_are_sound_in_a_browser_on_every_screen_in_both_themes_and_on_paper() {
    let Some(program) = program() else {
        assert!(std::env::var_os("CHAOS_REQUIRE_BROWSER").is_none(), "there is no browser, and one is demanded");
        eprintln!("skipped: there is no chromium here (checks/report installs it)");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let pictures = std::env::var_os("CHAOS_SCREENSHOTS").map(PathBuf::from);
    let mut browser = Browser::start(&program);
    for (name, path) in pages(folder.path()) {
        let mut papers = Vec::new();
        for screen in SCREENS {
            let on = format!("{name} on {}", screen.0);
            browser.screen(screen);
            browser.open(&path);
            let (wide, room) = (
                browser.number("document.documentElement.scrollWidth"),
                browser.number("document.documentElement.clientWidth"),
            );
            assert!(wide <= room, "{on}: {wide} wide, there is room for {room}");
            // The style sheet applies, that is: the policy knows it.
            let paper = browser.evaluate("getComputedStyle(document.body).backgroundColor");
            assert_ne!(paper, json!("rgba(0, 0, 0, 0)"), "{on}: no style");
            papers.push(paper);
            assert_eq!(browser.evaluate("document.scripts.length"), json!(0), "{on}");
            assert_eq!(browser.asked_for.len(), 1, "{on}: only the page itself is loaded: {:?}", browser.asked_for);
            assert!(browser.complaints.is_empty(), "{on}: {:?}", browser.complaints);
            let small = "[...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width > 0).every(e => \
                         e.getBoundingClientRect().width >= 0.75 * e.viewBox.baseVal.width)";
            assert_eq!(
                browser.evaluate(small),
                json!(true),
                "{on}: a picture is shrunk until its words cannot be read"
            );
            if let Some(pictures) = &pictures {
                std::fs::write(pictures.join(format!("{name}-{}.png", screen.0)), browser.picture())
                    .expect("a picture");
            }
        }
        assert_ne!(papers[0], papers[1], "{name}: the dark theme is another one");
        let pdf = browser.pdf();
        assert!(pdf.starts_with(b"%PDF"), "{name}: it can be printed");
        if let Some(pictures) = &pictures {
            std::fs::write(pictures.join(format!("{name}.pdf")), pdf).expect("a document");
        }
    }
}
