// SPDX-License-Identifier: AGPL-3.0-or-later
//! The flag table: one value a tool, from which come the parser, the help, the man page and the completions.

use chaoscontrol_artifact::ExitCode;
use chaoscontrol_artifact::schema::ENGINES;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing: it is a switch.
    None,
    /// One value, shown under this name.
    One(&'static str),
    /// One value each time; may be repeated.
    Many(&'static str),
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name behind `--`.
    pub long: &'static str,
    /// Letter behind `-`.
    pub short: Option<char>,
    /// What it takes.
    pub value: Value,
    /// What holds without it, for the help.
    pub default: Option<&'static str>,
    /// Environment variable that is read without it.
    pub environment: Option<&'static str>,
    /// The values there are; empty where they are no known set.
    pub choices: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

/// What a shell may complete a value with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completes {
    /// Nothing that a shell knows: a number, a text.
    Nothing,
    /// Files.
    Files,
    /// Folders.
    Folders,
    /// Programs on PATH.
    Programs,
    /// One of these.
    Choices(&'static [&'static str]),
}

impl Completes {
    /// By the name of a value, whose first part says what it is (`SRC:DEST` is a source file first).
    fn of(name: &str, choices: &'static [&'static str]) -> Self {
        if !choices.is_empty() {
            return Self::Choices(choices);
        }
        match name.split([':', '[']).next().unwrap_or_default() {
            "FILE" | "PATH" | "SRC" | "ARTIFACT" | "RECEIPT" | "DESCRIPTOR" => Self::Files,
            "DIR" => Self::Folders,
            "PROGRAM" => Self::Programs,
            _ => Self::Nothing,
        }
    }
}

impl Flag {
    /// A switch.
    pub const fn switch(long: &'static str, help: &'static str) -> Self {
        Self { long, short: None, value: Value::None, default: None, environment: None, choices: &[], help }
    }

    /// A flag with one value.
    pub const fn one(long: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { value: Value::One(value), ..Self::switch(long, help) }
    }

    /// A flag that may be repeated.
    pub const fn many(long: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { value: Value::Many(value), ..Self::switch(long, help) }
    }

    /// With what holds without it.
    pub const fn default(self, text: &'static str) -> Self {
        Self { default: Some(text), ..self }
    }

    /// With a letter.
    pub const fn short(self, letter: char) -> Self {
        Self { short: Some(letter), ..self }
    }

    /// With an environment variable.
    pub const fn environment(self, name: &'static str) -> Self {
        Self { environment: Some(name), ..self }
    }

    /// With the values there are: any other is refused, and a near miss is answered with the nearest.
    pub const fn choices(self, choices: &'static [&'static str]) -> Self {
        Self { choices, ..self }
    }

    /// The name of its value, unless it is a switch.
    pub(crate) fn value_name(&self) -> Option<&'static str> {
        match self.value {
            Value::None => None,
            Value::One(name) | Value::Many(name) => Some(name),
        }
    }

    /// What its value is completed with.
    pub(crate) fn completes(&self) -> Completes {
        Completes::of(self.value_name().unwrap_or_default(), self.choices)
    }

    /// Its help with what holds without it, for every rendering.
    pub(crate) fn help_text(&self) -> String {
        let mut text = self.help.to_owned();
        if matches!(self.value, Value::Many(_)) {
            text.push_str("; may be repeated");
        }
        if !self.choices.is_empty() {
            text.push_str(&format!(": {}", self.choices.join(", ")));
        }
        let environment = self.environment.map(|name| format!("env {name}"));
        let default = self.default.map(|text| format!("default {text}"));
        let notes: Vec<String> = environment.into_iter().chain(default).collect();
        if !notes.is_empty() {
            text.push_str(&format!(" [{}]", notes.join(", ")));
        }
        text
    }
}

/// Arguments without a flag.
#[derive(Clone, Copy, Debug)]
pub struct Positional {
    /// Name in the usage line.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// How many at least.
    pub min: usize,
    /// How many at most.
    pub max: usize,
    /// What the first may be, where that is a known set (commands); empty: anything.
    pub choices: &'static [&'static str],
}

impl Positional {
    /// As in a usage line: `[NAME...]`.
    pub(crate) fn usage(&self) -> String {
        let dots = if self.max > 1 { "..." } else { "" };
        if self.min == 0 { format!("[{}{dots}]", self.name) } else { format!("{}{dots}", self.name) }
    }

    /// What the first is completed with.
    pub(crate) fn completes(&self) -> Completes {
        Completes::of(self.name, self.choices)
    }
}

/// One tool.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// The binary's name.
    pub name: &'static str,
    /// The name of its stage in descriptors: the binary's without `chaos-`.
    pub stage: &'static str,
    /// The texts of its manifest and of its own source files: with the libraries they make its identity. A test of `checks/tidy`
    /// looks for files that were left out.
    pub sources: &'static [&'static str],
    /// One line.
    pub summary: &'static str,
    /// A paragraph.
    pub about: &'static str,
    /// What it reads.
    pub reads: &'static str,
    /// What it writes.
    pub writes: &'static str,
    /// Its flags; `--help`, `--version`, `--generate` and `--quiet` are added to all.
    pub flags: &'static [Flag],
    /// Arguments without a flag.
    pub positional: Option<Positional>,
    /// Exit codes besides 0, 1 and 2.
    pub exit_codes: &'static [ExitCode],
    /// Two examples that can be pasted: a few words about each, then the command.
    pub examples: [(&'static str, &'static str); 2],
}

/// `--help`.
pub const HELP: Flag = Flag::switch("help", "Print this help").short('h');
/// `--version`.
pub const VERSION: Flag =
    Flag::switch("version", "Print the version and the digest of the sources it was built from").short('V');
/// `--generate`.
pub const GENERATE: Flag =
    Flag::one("generate", "WHAT", "Write the manual page or a shell's completions, and end").choices(&GENERATED);
/// What `--generate` writes.
pub(crate) const GENERATED: [&str; 4] = ["man", "complete-bash", "complete-zsh", "complete-fish"];
/// `--quiet`.
pub const QUIET: Flag = Flag::switch("quiet", "No progress on stderr").short('q');
/// `--store`.
pub const STORE: Flag =
    Flag::one("store", "DIR", "Store to write to, and to read first").environment("CHAOS_STORE").default(".chaos");
/// `--from`.
pub const FROM: Flag = Flag::many("from", "DIR", "Store that is only read");
/// `--in`.
pub const INPUT: Flag = Flag::one("in", "FILE", "Descriptor of the stage before; - is stdin").default("-");
/// `--seed`.
pub const SEED: Flag =
    Flag::one("seed", "N", "Seed of every random stream of this stage").default("that of the stage before, else 0");

/// `--engine`, where a stage chooses.
pub const ENGINE: Flag = Flag::one("engine", "NAME", "What runs guest code").choices(&ENGINES);
/// `--allow-unfaithful-kvm`.
pub const ALLOW_UNFAITHFUL_KVM: Flag =
    Flag::switch("allow-unfaithful-kvm", "Use a KVM that does not behave like a CPU; the receipt says so");
/// `--pin-core`.
pub const PIN_CORE: Flag = Flag::one("pin-core", "N", "Run guests on KVM on this core only; changes no result");
/// `--watchdog-s`.
pub const WATCHDOG: Flag =
    Flag::one("watchdog-s", "N", "Give up after N s in which a guest on KVM made no exit").default("60");

/// `--jobs`.
pub const JOBS: Flag = Flag::one("jobs", "N", "Branches run at once; changes no result").default("the number of cores");
/// `--prefix-cache-mib`.
pub const PREFIX_CACHE: Flag = Flag::one(
    "prefix-cache-mib",
    "N",
    "MiB for snapshots in the middle of branches, from which others that are the same so far go on; changes no result",
)
.default("256");
/// `--tier`.
pub const TIER: Flag = Flag::one("tier", "NAME", "How guest instructions run, both compares; changes no result")
    .choices(&["reference", "compiled", "both"])
    .environment("CHAOS_TIER")
    .default("compiled");
/// `--bug`.
pub const BUG: Flag = Flag::one("bug", "N", "Only bug number N, counted from 1").default("all bugs");

/// `--profile`.
pub const PROFILE: Flag =
    Flag::one("profile", "FILE", "Profile whose values stand in for flags that are not given: its projection, or .ncl");

/// Flags that every tool has.
pub(crate) const COMMON: &[Flag] = &[QUIET, HELP, VERSION, GENERATE];

impl Tool {
    /// Its own flags and the common ones.
    pub fn all_flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().chain(COMMON)
    }

    /// Every exit code, in numeric order.
    pub fn all_exit_codes(&self) -> Vec<ExitCode> {
        let mut codes = vec![ExitCode::Success, ExitCode::Internal, ExitCode::Usage];
        codes.extend_from_slice(self.exit_codes);
        codes.sort();
        codes.dedup();
        codes
    }
}
