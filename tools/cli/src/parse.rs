// SPDX-License-Identifier: AGPL-3.0-or-later
//! Arguments by the flag table.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::Arg;

use crate::failure::{Failure, Failures};
use crate::table::{Flag, Tool, Value};

/// Parsed arguments.
#[derive(Debug, Default)]
pub struct Arguments {
    values: BTreeMap<&'static str, Vec<OsString>>,
    /// Arguments without a flag, in order.
    pub positional: Vec<OsString>,
}

impl Arguments {
    /// Parses by the tool's table. Environment variables stand in for flags that are not given.
    pub fn parse(
        tool: &Tool,
        arguments: impl IntoIterator<Item = OsString>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Failures<Self> {
        let mut parsed = Self::default();
        let words: Vec<OsString> = arguments.into_iter().collect();
        let mut parser = lexopt::Parser::from_args(words.iter().cloned());
        while let Some(argument) = parser.next().map_err(|error| Failure::usage(error.to_string()))? {
            let flag = match argument {
                Arg::Long(name) => {
                    tool.all_flags().find(|flag| flag.long == name).ok_or_else(|| unknown(tool, name))?
                }
                Arg::Short(letter) => {
                    let missing = || unknown_short(tool, letter, &words);
                    tool.all_flags().find(|flag| flag.short == Some(letter)).ok_or_else(missing)?
                }
                Arg::Value(value) => {
                    parsed.positional.push(value);
                    continue;
                }
            };
            let values = parsed.values.entry(flag.long).or_default();
            if !values.is_empty() && !matches!(flag.value, Value::Many(_)) {
                return Err(Failure::usage(format!("--{} is given twice", flag.long)));
            }
            values.push(match flag.value {
                Value::None => OsString::new(),
                Value::One(_) | Value::Many(_) => parser.value().map_err(|error| Failure::usage(error.to_string()))?,
            });
        }
        for flag in tool.all_flags() {
            if let Some(value) = flag.environment.and_then(&environment).filter(|value| !value.is_empty()) {
                parsed.values.entry(flag.long).or_insert_with(|| vec![value]);
            }
            for value in parsed.all(flag.long) {
                one_of(&format!("--{}", flag.long), value, flag.choices)?;
            }
        }
        if !["help", "version", "generate"].iter().any(|flag| parsed.is_set(flag)) {
            parsed.check_positional(tool)?;
        }
        Ok(parsed)
    }

    fn check_positional(&self, tool: &Tool) -> Failures<()> {
        let (name, min, max) = tool.positional.map_or(("argument", 0, 0), |p| (p.name, p.min, p.max));
        if self.positional.len() < min {
            return Err(Failure::usage(format!("{name} is missing{}", see(tool))));
        }
        if let (Some(first), Some(positional)) = (self.positional.first(), tool.positional) {
            one_of(positional.name, first, positional.choices)?;
        }
        if let Some(extra) = self.positional.get(max) {
            return Err(Failure::usage(format!("unexpected argument {extra:?}{}", see(tool))));
        }
        Ok(())
    }

    /// Whether a flag is given.
    pub fn is_set(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The value of a flag as it was given.
    pub fn os(&self, name: &str) -> Option<&OsString> {
        self.values.get(name)?.first()
    }

    /// All values of a flag that may be repeated.
    pub fn all(&self, name: &str) -> &[OsString] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// The value of a flag as a path.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.os(name).map(PathBuf::from)
    }

    /// The value of a flag as text.
    pub fn text(&self, name: &str) -> Failures<Option<String>> {
        self.os(name).map(|value| text(name, value)).transpose()
    }

    /// All values of a flag as text.
    pub fn texts(&self, name: &str) -> Failures<Vec<String>> {
        self.all(name).iter().map(|value| text(name, value)).collect()
    }

    /// The value of a flag as a number: decimal, or hexadecimal behind `0x`; `_` may group digits.
    pub fn number(&self, name: &str) -> Failures<Option<u64>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let digits = text.replace('_', "");
        let number = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        let bad = |_| Failure::usage(format!("--{name} is {text:?}, it must be an unsigned 64-bit number"));
        number.map(Some).map_err(bad)
    }

    /// As [`Self::number`], within bounds, with a default.
    pub fn number_within(&self, name: &str, min: u64, max: u64, default: u64) -> Failures<u64> {
        match self.number(name)? {
            None => Ok(default),
            Some(number) if (min..=max).contains(&number) => Ok(number),
            Some(number) => Err(Failure::usage(format!("--{name} is {number}, it must lie between {min} and {max}"))),
        }
    }

    /// What the flags about KVM say: allow one that is not faithful, the core, the watchdog's seconds.
    pub fn kvm(&self) -> Failures<(bool, Option<u64>, u64)> {
        let watchdog_s = self.number_within("watchdog-s", 1, 1 << 30, 60)?;
        Ok((self.is_set("allow-unfaithful-kvm"), self.number("pin-core")?, watchdog_s))
    }

    /// What `--prefix-cache-mib` says, in bytes.
    pub fn prefix_cache_bytes(&self) -> Failures<u64> {
        Ok(self.number_within("prefix-cache-mib", 0, 1 << 20, 256)? << 20)
    }

    /// The value of a flag that must be given.
    pub fn required(&self, name: &str) -> Failures<PathBuf> {
        self.path(name).ok_or_else(|| Failure::usage(format!("--{name} is missing")))
    }
}

fn text(name: &str, value: &OsString) -> Failures<String> {
    value.to_str().map(str::to_owned).ok_or_else(|| Failure::usage(format!("--{name} is not valid UTF-8: {value:?}")))
}

fn see(tool: &Tool) -> String {
    format!("; see {} --help", tool.name)
}

fn unknown(tool: &Tool, name: &str) -> Failure {
    match nearest(name, tool.all_flags().map(|flag| flag.long)) {
        Some(flag) => Failure::usage(format!("unknown flag --{name}; did you mean --{flag}?")),
        None => Failure::usage(format!("unknown flag --{name}{}", see(tool))),
    }
}

/// A letter that is no flag: of the other case, or the beginning of a long flag behind one dash.
fn unknown_short(tool: &Tool, letter: char, words: &[OsString]) -> Failure {
    let other_case = |flag: &&Flag| flag.short.is_some_and(|short| short.eq_ignore_ascii_case(&letter));
    let behind_one_dash = |flag: &&Flag| words.iter().any(|word| word.to_str() == Some(&format!("-{}", flag.long)));
    let meant = if let Some(flag) = tool.all_flags().find(behind_one_dash) {
        format!("; did you mean --{}?", flag.long)
    } else if let Some(short) = tool.all_flags().find(other_case).and_then(|flag| flag.short) {
        format!("; did you mean -{short}?")
    } else {
        see(tool)
    };
    Failure::usage(format!("unknown flag -{letter}{meant}"))
}

/// A value of a known set; an empty set takes anything.
fn one_of(what: &str, value: &OsString, choices: &[&'static str]) -> Failures<()> {
    let word = value.to_string_lossy();
    if choices.is_empty() || choices.contains(&word.as_ref()) {
        return Ok(());
    }
    let meant =
        nearest(&word, choices.iter().copied()).map_or(String::new(), |choice| format!("; did you mean {choice}?"));
    Err(Failure::usage(format!("{what} is {word:?}, it must be one of {}{meant}", choices.join(", "))))
}

/// The name that a misspelt one is nearest to. Half of the letters wrong is no misspelling.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = names.into_iter().map(|name| (distance(wrong, name), name)).min()?;
    (distance <= 1 + wrong.chars().count() / 3).then_some(name)
}

/// Edit distance with swaps of neighbours (optimal string alignment).
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().take(64).collect(), right.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=right.len()).collect()];
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let mut best = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{FROM, Positional, SEED, STORE};

    const TOOL: Tool = Tool {
        name: "chaos-test",
        stage: "test",
        sources: &[],
        summary: "",
        about: "",
        reads: "",
        writes: "",
        flags: &[
            STORE,
            FROM,
            SEED,
            Flag::switch("from-boot", ""),
            Flag::many("only", "WHAT", "").choices(&["boot", "raft"]),
        ],
        positional: Some(Positional { name: "COMMAND", help: "", min: 0, max: 1, choices: &["file", "verify"] }),
        exit_codes: &[],
        examples: [("", ""), ("", "")],
    };

    fn parse(arguments: &[&str]) -> Failures<Arguments> {
        let environment = |name: &str| (name == "CHAOS_STORE").then(|| OsString::from("/env"));
        Arguments::parse(&TOOL, arguments.iter().map(OsString::from), environment)
    }

    #[test]
    fn flags_are_read_by_the_table() {
        let parsed = parse(&["--seed", "0x10", "--from=a", "--from", "b", "file", "--from-boot"]).unwrap();
        assert_eq!(parsed.number("seed").unwrap(), Some(16));
        assert_eq!(parsed.texts("from").unwrap(), ["a", "b"]);
        assert!(parsed.is_set("from-boot"));
        assert_eq!(parsed.path("store").unwrap(), PathBuf::from("/env"));
        assert_eq!(parse(&["--store", "x"]).unwrap().path("store").unwrap(), PathBuf::from("x"));
        assert_eq!(parsed.positional, ["file"]);
    }

    #[test]
    fn a_misspelt_flag_is_answered_with_the_nearest_one() {
        for (wrong, right) in [("sotre", "store"), ("form-boot", "from-boot"), ("sed", "seed"), ("versoin", "version")]
        {
            let message = parse(&[&format!("--{wrong}")]).unwrap_err().message;
            assert_eq!(message, format!("unknown flag --{wrong}; did you mean --{right}?"));
        }
        assert!(!parse(&["--zzzzzzzz"]).unwrap_err().message.contains("did you mean"));
    }

    #[test]
    fn wrong_usage_is_refused_with_what_is_wrong() {
        for (arguments, part) in [
            (vec!["--seed"], "seed"),
            (vec!["--seed", "1", "--seed", "2"], "twice"),
            (vec!["file", "b"], "unexpected argument \"b\""),
            (vec!["--from-boot=yes"], "from-boot"),
            (vec!["-z"], "unknown flag -z; see chaos-test --help"),
            (vec!["-v"], "unknown flag -v; did you mean -V?"),
            (vec!["-seed", "7"], "unknown flag -s; did you mean --seed?"),
            (vec!["verfiy"], "COMMAND is \"verfiy\", it must be one of file, verify; did you mean verify?"),
            (vec!["--only", "rat"], "--only is \"rat\", it must be one of boot, raft; did you mean raft?"),
            (vec!["--only", "boot", "--only", "x"], "must be one of boot, raft"),
            (vec!["--generate", "man-page"], "complete-bash"),
        ] {
            let failure = parse(&arguments).unwrap_err();
            assert!(failure.message.contains(part), "{arguments:?}: {}", failure.message);
            assert_eq!(failure.code, chaoscontrol_artifact::ExitCode::Usage);
        }
        assert!(parse(&["--seed", "-1"]).unwrap().number("seed").is_err());
        assert!(parse(&["--seed", "18446744073709551616"]).unwrap().number("seed").is_err());
    }
}
