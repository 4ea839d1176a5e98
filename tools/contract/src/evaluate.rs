// SPDX-License-Identifier: AGPL-3.0-or-later
//! The one place where Nickel runs: a program made of contracts and of documents, all of them in memory.
//!
//! Contracts are sources under `/contracts/`, documents under `/documents/`. Imports of those names are found in memory; no
//! other name is a file, since the process may open none (see `limits`). Nothing of the environment, the locale or the
//! working directory enters.

use nickel_lang_core::cache::{CacheHub, InputFormat, SourcePath};
use nickel_lang_core::error::{Error, EvalErrorKind, NullReporter};
use nickel_lang_core::eval::cache::CacheImpl;
use nickel_lang_core::eval::value::NickelValue;
use nickel_lang_core::eval::{VirtualMachine, VmContext};
use nickel_lang_core::files::FileId;
use nickel_lang_core::identifier::LocIdent;
use nickel_lang_core::position::{PosIdx, PosTable, RawSpan, TermPos};
use nickel_lang_core::program::FieldPath;
use nickel_lang_core::serialize::{self, ExportFormat};

use std::ops::Range;

/// The evaluator's name and version, as profiles record it.
pub const EVALUATOR: &str = "nickel-lang-core 0.19.0";

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule, a sentence that follows the value: "must be a map".
    pub rule: String,
    /// Where in the document.
    pub range: Option<Range<usize>>,
}

/// Sources, and what evaluates them.
pub struct Evaluator {
    context: VmContext<CacheHub, CacheImpl>,
}

impl Evaluator {
    /// An evaluator that knows these contracts: names relative to `/contracts/`, and texts.
    pub fn new<'a>(contracts: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut sources = CacheHub::new();
        for (name, text) in contracts {
            let path = SourcePath::Path(format!("/contracts/{name}").into(), InputFormat::Nickel);
            sources.sources.add_string(path, text.to_owned());
        }
        Self { context: VmContext::new(sources, std::io::sink(), NullReporter {}) }
    }

    /// Adds a source under an absolute name.
    pub fn add(&mut self, name: &str, format: InputFormat, text: String) -> FileId {
        self.context.import_resolver.sources.add_string(SourcePath::Path(name.into(), format), text)
    }

    /// Makes the contracts for authors known as `chaos/KIND.ncl`, wherever they are imported from.
    pub fn add_library(&mut self) {
        for (name, _) in chaoscontrol_artifact::contract::sources() {
            if let Some(kind) = name.strip_prefix("profile/") {
                self.add(
                    &format!("/library/chaos/{kind}"),
                    InputFormat::Nickel,
                    format!("import \"/contracts/{name}\""),
                );
            }
        }
        self.context.import_resolver.sources.add_import_paths(std::iter::once("/library"));
    }

    /// A whole source as JSON; if it does not evaluate, Nickel's report.
    pub fn export(&mut self, source: FileId) -> Result<String, String> {
        let program = self.prepare(source).map_err(|error| self.report(*error))?;
        let mut machine = VirtualMachine::new(&mut self.context);
        let value = machine.eval_full_for_export_closure(program.into());
        drop(machine);
        let value = value.map_err(|error| self.report(Error::EvalError(error)))?;
        serialize::to_string(ExportFormat::Json, &value).map_err(|error| format!("{:?}", error.error))
    }

    /// The files that a source imports, however far, by name, sorted.
    pub fn imports(&self, of: FileId) -> Vec<String> {
        let hub = &self.context.import_resolver;
        let name = |file| hub.sources.name(file).to_string_lossy().into_owned();
        let mut names: Vec<String> = hub.import_data.transitive_imports(of).into_iter().map(name).collect();
        names.sort();
        names
    }

    /// Prepares a program; its fields are what [`Self::force`] takes.
    pub fn prepare(&mut self, main: FileId) -> Result<NickelValue, Box<Error>> {
        Ok(self.context.prepare_eval_only(main)?)
    }

    /// Evaluates one field of a program to its last leaf. `document` is the source that findings point into.
    pub fn force(&mut self, program: &NickelValue, field: &str, document: FileId) -> Result<NickelValue, Finding> {
        let mut machine = VirtualMachine::new(&mut self.context);
        let path = FieldPath(vec![LocIdent::new(field)]);
        let value = machine.extract_field_value_closure(program.clone().into(), &path);
        let value = value.and_then(|closure| machine.eval_full_for_export_closure(closure));
        drop(machine);
        value.map_err(|error| self.finding(Error::EvalError(error), document))
    }

    /// An error as a finding.
    pub fn finding(&mut self, error: Error, document: FileId) -> Finding {
        let Error::EvalError(error) = error else {
            return Finding { rule: self.report(error), range: None };
        };
        let table = &error.ctxt.pos_table;
        let range_of = |positions: &[PosIdx]| positions.iter().find_map(|position| range(table, *position, document));
        let (rule, range) = match &error.error {
            EvalErrorKind::BlameError { evaluated_arg, label } => {
                let message = label.diagnostics.iter().rev().find_map(|diagnostic| diagnostic.message.clone());
                let argument = evaluated_arg.as_ref().map_or(PosIdx::NONE, NickelValue::pos_idx);
                (message.map(said_of_fields), range_of(&[label.arg_pos, argument]))
            }
            EvalErrorKind::MissingFieldDef { id, pos_record, pos_access, .. } => {
                (Some(format!("must have the field {id}")), range_of(&[*pos_record, *pos_access]))
            }
            _ => (None, None),
        };
        let rule = rule.unwrap_or_else(|| self.report(Error::EvalError(error)));
        Finding { rule, range }
    }

    /// Nickel's own report, for what is wrong with a contract or a profile rather than with a document.
    pub fn report(&mut self, error: Error) -> String {
        let mut files = self.context.import_resolver.sources.files.clone();
        let color = nickel_lang_core::error::report::ColorOpt::Never;
        nickel_lang_core::error::report::report_as_str(&mut files, error, color).trim_end().to_owned()
    }
}

/// Nickel's own words about fields that a closed record does not have, in ours.
fn said_of_fields(message: String) -> String {
    match message.strip_prefix("extra field") {
        Some(rest) => format!("must not have the field{}", rest.replace('`', "")),
        None => message,
    }
}

fn range(table: &PosTable, position: PosIdx, document: FileId) -> Option<Range<usize>> {
    let (TermPos::Original(span) | TermPos::Inherited(span)) = table.get(position) else { return None };
    let RawSpan { src_id, .. } = span;
    (src_id == document).then(|| span.to_range::<usize>())
}
