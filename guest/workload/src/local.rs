// SPDX-License-Identifier: Apache-2.0
//! The dry run: all nodes as threads of one process, and a report.

use crate::{Node, Workload};
use chaoscontrol_sdk::{SiteReport, sites};
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};

/// A property is broken, or a node could not go on.
const BROKEN: u8 = 10;
const WRONG_USAGE: u8 = 2;
const NODES_MAX: u32 = 32;

#[derive(Debug, PartialEq, Eq)]
struct Options {
    nodes: u32,
    steps: u64,
    port: u16,
    parameters: Vec<(String, String)>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { nodes: 3, steps: 200, port: 24_100, parameters: Vec::new() };
        while let Some(argument) = arguments.next() {
            let mut number = |max: u64| {
                let value = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
                let parsed = value.parse::<u64>().ok().filter(|number| (1..=max).contains(number));
                parsed.ok_or_else(|| format!("{argument} is {value:?}, it must be a number from 1 to {max}"))
            };
            match argument.as_str() {
                "--nodes" => options.nodes = number(u64::from(NODES_MAX))? as u32,
                "--steps" => options.steps = number(1 << 40)?,
                "--port" => options.port = number(60_000)? as u16,
                _ => match argument.split_once('=') {
                    Some((name, value)) => options.parameters.push((name.to_owned(), value.to_owned())),
                    None => {
                        return Err(format!(
                            "unknown argument {argument:?}: [--nodes N] [--steps N] [--port N] [NAME=VALUE]"
                        ));
                    }
                },
            }
        }
        Ok(options)
    }
}

pub(crate) fn run<W: Workload>(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    let failures = run_nodes::<W>(&options);
    let (text, broken) = report(&sites(), &failures);
    println!("dry run: {} nodes, {} steps each, no faults\n{text}", options.nodes, options.steps);
    if broken { ExitCode::from(BROKEN) } else { ExitCode::SUCCESS }
}

/// Runs every node to its end; gives why nodes could not go on.
fn run_nodes<W: Workload>(options: &Options) -> Vec<String> {
    let parameters: Arc<[(String, String)]> = options.parameters.clone().into();
    let ready = Arc::new(Barrier::new(options.nodes as usize));
    let nodes: Vec<_> = (0..options.nodes)
        .map(|me| {
            let node = Node::local(me, options.nodes, options.port, parameters.clone());
            let (ready, steps) = (ready.clone(), options.steps);
            std::thread::spawn(move || {
                let workload = W::setup(node);
                // Whether or not it worked: the others wait.
                ready.wait();
                let mut workload = workload?;
                (0..steps).try_for_each(|_| workload.step())
            })
        })
        .collect();
    let mut failures = Vec::new();
    for (me, node) in nodes.into_iter().enumerate() {
        match node.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failures.push(format!("node {me} could not go on: {error}")),
            Err(_) => failures.push(format!("node {me} panicked")),
        }
    }
    failures
}

/// What was registered and what was observed; and whether something is broken.
fn report(sites: &[SiteReport], failures: &[String]) -> (String, bool) {
    let (mut text, mut broken, mut unseen) = (String::new(), !failures.is_empty(), 0);
    for site in sites {
        let verdict = match (site.violated(), site.missing()) {
            (true, _) => "BROKEN",
            (false, true) => "not seen",
            (false, false) => "ok",
        };
        broken |= site.violated();
        unseen += usize::from(site.missing());
        let SiteReport { kind, message, package, file, line, .. } = site;
        writeln!(text, "  {verdict:8}  {kind:22} {message}  ({package}/{file}:{line})")
            .expect("a String takes everything");
    }
    for failure in failures {
        writeln!(text, "  BROKEN    {failure}").expect("as above");
    }
    let state = if broken { "something is broken" } else { "nothing is broken" };
    write!(
        text,
        "{} properties registered, {unseen} not seen (a run with faults may reach them): {state}",
        sites.len()
    )
    .expect("as above");
    (text, broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chaoscontrol_sdk::{assert_always, assert_sometimes};

    fn parsed(words: &[&str]) -> Result<Options, String> {
        Options::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn arguments_are_parsed_strictly() {
        let parameters = vec![("bug".to_owned(), "x".to_owned())];
        let expected = Options { nodes: 2, steps: 5, port: 30_000, parameters };
        assert_eq!(parsed(&["--nodes", "2", "bug=x", "--steps", "5", "--port", "30000"]), Ok(expected));
        for wrong in [&["--nodes"][..], &["--nodes", "0"], &["--nodes", "99"], &["--what"], &["x"]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Adds up what it is given; node 1 lies if it is told to.
    struct Adder {
        node: Node,
        sum: u64,
    }

    impl Workload for Adder {
        fn setup(node: Node) -> Result<Self, crate::Failure> {
            Ok(Self { node, sum: 0 })
        }

        fn step(&mut self) -> Result<(), crate::Failure> {
            self.sum += 1;
            assert_always!(self.sum < 6, "the sum stays small");
            assert_sometimes!(self.node.me() == 7, "there is an eighth node");
            Ok(())
        }
    }

    #[test]
    fn a_dry_run_reports_what_was_registered_and_what_was_seen() {
        let run = |steps| {
            let failures = run_nodes::<Adder>(&Options { nodes: 3, steps, port: 24_100, parameters: Vec::new() });
            report(&sites(), &failures)
        };
        let (text, broken) = run(5);
        assert!(!broken, "{text}");
        assert!(text.contains("ok        always                 the sum stays small"), "{text}");
        assert!(text.contains("not seen  sometimes              there is an eighth node"), "{text}");
        let (text, broken) = run(6);
        assert!(broken && text.contains("BROKEN    always"), "{text}");
    }
}
