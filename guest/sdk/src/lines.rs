// SPDX-License-Identifier: Apache-2.0
//! Reports as JSON lines, for runs outside a VM. The shape is the public one of Antithesis' SDK (protocol 1.1.0), so that
//! tools which read those lines read ours; agreements, which it does not have, are lines of their own.

use crate::details::JsonText;
use crate::numeric::JsonNumber;
use crate::site::{Catalog, Site};
use chaoscontrol_protocol::{AssertionKind, Outcome, Record};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::Write;

const OUTPUT_VARIABLES: [&str; 2] = ["CHAOS_SDK_LOCAL_OUTPUT", "ANTITHESIS_SDK_LOCAL_OUTPUT"];

/// A file that lines are appended to.
pub(crate) struct Lines {
    file: File,
}

impl Lines {
    /// Opens the file that the environment names, if it names one.
    pub(crate) fn from_environment() -> Option<Self> {
        let path = OUTPUT_VARIABLES.iter().find_map(std::env::var_os)?;
        match File::options().append(true).create(true).open(&path) {
            Ok(file) => Some(Self { file }),
            Err(error) => {
                eprintln!("chaoscontrol-sdk: cannot append to {}: {error}", path.display());
                None
            }
        }
    }

    /// Introduces the SDK and lists every site.
    pub(crate) fn start(&mut self, catalog: &Catalog) {
        self.line(format_args!(
            "{{\"antithesis_sdk\":{{\"language\":{{\"name\":\"Rust\",\"version\":\"{}\"}},\"sdk_version\":\"{}\",\
             \"protocol_version\":\"1.1.0\"}}}}",
            env!("CARGO_PKG_RUST_VERSION"),
            env!("CARGO_PKG_VERSION"),
        ));
        for (_, site) in catalog.sites() {
            self.line(format_args!("{}", AssertLine { site, hit: false, condition: false, details: "" }));
        }
    }

    /// Writes a record. Those that only the host understands have no line.
    pub(crate) fn write(&mut self, record: &Record<'_>, catalog: &Catalog) {
        match *record {
            Record::Assertion { site, outcome, details } => {
                if let Some(site) = catalog.get(site) {
                    let condition = outcome == Outcome::Pass;
                    self.line(format_args!("{}", AssertLine { site, hit: true, condition, details }));
                }
            }
            Record::Guidance { site, maximize, left, right } => {
                if let Some(site) = catalog.get(site) {
                    let id = JsonText(site.message);
                    self.line(format_args!(
                        "{{\"antithesis_guidance\":{{\"guidance_data\":{{\"left\":{},\"right\":{}}},\
                         \"guidance_type\":\"numeric\",\"hit\":true,\"id\":{id},\"location\":{},\"maximize\":{maximize},\
                         \"message\":{id}}}}}",
                        JsonNumber(left),
                        JsonNumber(right),
                        Location(site),
                    ));
                }
            }
            Record::Event { name, details } => self.line(format_args!("{{{}:{}}}", JsonText(name), Json(details))),
            Record::SetupComplete { details } => self.line(format_args!(
                "{{\"antithesis_setup\":{{\"status\":\"complete\",\"details\":{}}}}}",
                Json(details)
            )),
            Record::Agree { namespace, key, digest, value, .. } => self.line(format_args!(
                "{{\"chaos_agree\":{{\"namespace\":{},\"key\":{},\"value\":{},\"sha256\":\"{}\"}}}}",
                JsonText(namespace),
                JsonText(&String::from_utf8_lossy(key)),
                JsonText(&String::from_utf8_lossy(value)),
                Hex(&digest),
            )),
            Record::Log { text, .. } => self.line(format_args!("{{\"chaos_log\":{{\"text\":{}}}}}", JsonText(text))),
            Record::ProcessExit { pid, signalled, code } => self.line(format_args!(
                "{{\"chaos_process_exit\":{{\"pid\":{pid},\"signalled\":{signalled},\"code\":{code}}}}}"
            )),
            Record::Quiet { lasts_ns } => self.line(format_args!("{{\"chaos_quiet\":{{\"lasts_ns\":{lasts_ns}}}}}")),
            Record::ProcessStart { .. } | Record::Catalog(_) | Record::CatalogEnd { .. } | Record::Random { .. } => {}
        }
    }

    /// One write a line, so that the lines of several processes do not mix.
    fn line(&mut self, line: fmt::Arguments<'_>) {
        let text = format!("{line}\n");
        if let Err(error) = self.file.write_all(text.as_bytes()) {
            eprintln!("chaoscontrol-sdk: cannot write a line: {error}");
        }
    }
}

struct AssertLine<'a> {
    site: &'static Site,
    hit: bool,
    condition: bool,
    details: &'a str,
}

impl Display for AssertLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { site, hit, condition, details } = self;
        let (assert_type, display_type) = match site.kind {
            AssertionKind::Always => ("always", "Always"),
            AssertionKind::AlwaysOrUnreachable => ("always", "AlwaysOrUnreachable"),
            AssertionKind::Sometimes => ("sometimes", "Sometimes"),
            AssertionKind::Reachable => ("reachability", "Reachable"),
            AssertionKind::Unreachable => ("reachability", "Unreachable"),
            // Reaching an agreement is all that one process can say of it.
            AssertionKind::Agree => ("reachability", "Reachable"),
        };
        let id = JsonText(site.message);
        write!(
            f,
            "{{\"antithesis_assert\":{{\"assert_type\":\"{assert_type}\",\"condition\":{condition},\"details\":{},\
             \"display_type\":\"{display_type}\",\"hit\":{hit},\"id\":{id},\"location\":{},\"message\":{id},\
             \"must_hit\":{}}}}}",
            Json(details),
            Location(site),
            site.kind.must_hit(),
        )
    }
}

struct Location(&'static Site);

impl Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Site { package, file, line, column, module, .. } = self.0;
        write!(
            f,
            "{{\"begin_column\":{column},\"begin_line\":{line},\"class\":{},\"file\":{},\"function\":{}}}",
            JsonText(package),
            JsonText(file),
            JsonText(module),
        )
    }
}

/// Details as JSON: what does not look like JSON becomes a string.
struct Json<'a>(&'a str);

impl Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_bytes().first() {
            None => f.write_str("null"),
            Some(b'{' | b'[' | b'"') => f.write_str(self.0),
            Some(_) => write!(f, "{}", JsonText(self.0)),
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
