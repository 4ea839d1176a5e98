// SPDX-License-Identifier: AGPL-3.0-or-later
//! Reports: that no text of a guest gets out of its place, that bytes are the same for the same report, and how pages look in a
//! real browser.

mod browser;
mod samples;

use chaoscontrol_evidence::page::{html, json, text};
use samples::{HOSTILE, all, hostile};

/// Elements that a page consists of. None of them runs, loads or sends anything.
const ELEMENTS: &[&str] = &[
    "!DOCTYPE",
    "a",
    "body",
    "br",
    "circle",
    "code",
    "dd",
    "details",
    "div",
    "dl",
    "dt",
    "figcaption",
    "figure",
    "footer",
    "g",
    "h1",
    "h2",
    "h3",
    "head",
    "header",
    "html",
    "line",
    "main",
    "meta",
    "nav",
    "p",
    "path",
    "pre",
    "rect",
    "section",
    "span",
    "style",
    "summary",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "th",
    "thead",
    "title",
    "tr",
];

/// Attributes that they have.
const ATTRIBUTES: &[&str] = &[
    "aria-label",
    "charset",
    "class",
    "content",
    "cx",
    "cy",
    "d",
    "height",
    "href",
    "html",
    "http-equiv",
    "id",
    "lang",
    "name",
    "open",
    "r",
    "role",
    "text-anchor",
    "viewBox",
    "width",
    "x",
    "x1",
    "x2",
    "y",
    "y1",
    "y2",
];

/// Every tag of a page: name and attributes with their values.
fn tags(page: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut tags = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        let end = rest[start..].find('>').expect("a tag ends") + start;
        let inner = rest[start + 1..end].trim_start_matches('/');
        rest = &rest[end + 1..];
        let (name, mut more) = inner.split_once(' ').unwrap_or((inner, ""));
        let mut attributes = Vec::new();
        while !more.trim().is_empty() {
            more = more.trim_start().trim_end_matches('/');
            let length = more.find(['=', ' ']).unwrap_or(more.len());
            let (attribute, tail) = more.split_at(length);
            match tail.strip_prefix("=\"") {
                Some(tail) => {
                    let (value, tail) = tail.split_once('"').expect("a quoted value");
                    attributes.push((attribute.to_owned(), value.to_owned()));
                    more = tail;
                }
                None => {
                    attributes.push((attribute.to_owned(), String::new()));
                    more = tail;
                }
            }
        }
        // A style sheet is not markup.
        if name == "style" && rest.contains("</style>") {
            rest = &rest[rest.find("</style>").expect("its end")..];
        }
        tags.push((name.trim_end_matches('/').to_owned(), attributes));
    }
    tags
}

#[test]
fn a_page_has_only_elements_that_do_nothing_whatever_guests_say() {
    for (name, report) in all() {
        for (element, attributes) in tags(&html(&report)) {
            assert!(ELEMENTS.contains(&element.as_str()), "{name}: <{element}>");
            for (attribute, value) in attributes {
                assert!(ATTRIBUTES.contains(&attribute.as_str()), "{name}: {attribute} of <{element}>");
                assert!(attribute != "href" || value.starts_with('#'), "{name}: a link to {value}");
            }
        }
    }
}

#[test]
fn hostile_text_adds_no_tag_and_is_there_to_be_read() {
    let (mild, wild) = (html(&hostile("mild")), html(&hostile(HOSTILE)));
    let names = |page: &str| tags(page).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&mild), names(&wild), "text changes no structure");
    assert!(wild.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "what the guest said can be read");
    for c in wild.chars() {
        assert!(!c.is_control() || c == '\n', "{c:?} is in the page");
        assert!(
            !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}'),
            "{c:?} is in the page"
        );
    }
    let terminal = text(&hostile(HOSTILE));
    assert!(terminal.chars().all(|c| !c.is_control() || c == '\n'), "nothing steers a terminal");
    let json = json(&hostile(HOSTILE)).expect("a report is JSON");
    assert!(json.bytes().all(|byte| (0x20..0x7f).contains(&byte) || byte == b'\n'), "JSON is plain ASCII");
    serde_json::from_str::<serde_json::Value>(&json).expect("and well-formed");
}

#[test]
fn one_report_gives_the_same_bytes() {
    for ((name, first), (_, second)) in all().into_iter().zip(all()) {
        assert_eq!(html(&first), html(&second), "{name}");
        assert_eq!(text(&first), text(&second), "{name}");
    }
}

#[test]
fn every_sample_says_its_verdict_first() {
    for (name, report) in all() {
        let page = html(&report);
        let verdict = page.find("class=\"verdict").expect("a verdict");
        let others = ["<section", "<table", "<svg"].map(|part| page.find(part).unwrap_or(usize::MAX));
        assert!(others.into_iter().all(|place| verdict < place), "{name}");
        assert!(page.contains("default-src &#39;none&#39;") || page.contains("default-src 'none'"), "{name}: a policy");
    }
}

#[test]
fn assertions_say_how_they_stand_and_when_they_passed_and_failed_first() {
    let report = hostile("mild");
    for (form, written) in [("html", html(&report)), ("text", text(&report))] {
        for said in [
            "first passed before the snapshot on vm 0 at 1.000 s of cluster time",
            "first failed in branch 7 on vm 1 at 4.000 s of cluster time",
        ] {
            assert!(written.contains(said), "{form}: {said}");
        }
        let lower = written.to_lowercase();
        assert!(lower.contains("never passed"), "{form}: evaluated, and never true");
        assert!(!lower.contains("never reached"), "{form}: each that had to be reached was");
    }
}
