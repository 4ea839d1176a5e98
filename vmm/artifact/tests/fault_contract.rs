// SPDX-License-Identifier: AGPL-3.0-or-later
//! `contracts/lib/fault.ncl` is written from the fault table, and held against it here.
//!
//! `CHAOS_GOLDEN=write cargo test -p chaoscontrol-artifact --test fault_contract` writes the file anew.

use std::fmt::Write;
use std::path::Path;

use chaoscontrol_fault::{Parameter, SPECS, Width};

const HEAD: &str = r#"# SPDX-License-Identifier: AGPL-3.0-or-later
# Every kind of fault with its parameters. Written from the fault table by a test of `vmm/artifact` (see docs/contracts.md).
let base = import "base.ncl" in
let rec fault_lib = {
  kinds = {
"#;

const TAIL: &str = r#"  },

  Fault =
    let names = std.record.fields fault_lib.kinds in
    %contract/custom% (fun label value =>
      if !(std.is_record value) then
        'Error { message = "must be a map of time_ns, fault and the fault's parameters" }
      else if !(std.record.has_field "fault" value) then
        'Error { message = "must have the field fault, which names the kind" }
      else if !(std.is_string value.fault && std.record.has_field value.fault fault_lib.kinds) then
        'Error { message = "must be a kind of fault: %{std.string.join ", " names}", blame_location = value.fault }
      else
        %contract/check% fault_lib.kinds."%{value.fault}" label value
    ),
}
in fault_lib
"#;

fn contract(parameter: &Parameter) -> String {
    let (min, max) = (parameter.domain.min, parameter.domain.max);
    match parameter.width {
        Width::Small => format!("base.Integer {min} {max}"),
        Width::Wide if min < 0 => format!("base.SignedWide ({min}) {max}"),
        Width::Wide => format!("base.Wide {min} {max}"),
    }
}

fn expected() -> String {
    let mut out = HEAD.to_owned();
    for spec in SPECS {
        let doc = spec.doc.trim();
        let _ = writeln!(out, "    # {}", doc.replace('\n', " "));
        let is_skew = spec.name == "clock_skew";
        let (before, after) = if is_skew { ("base.Sequence [", "") } else { ("", ",") };
        let _ = writeln!(out, "    {} = {before}{{", spec.name);
        let _ = writeln!(out, "      fault\n        | base.Text\n        | doc \"the kind\",");
        let _ = writeln!(out, "      time_ns\n        | base.U64\n        | doc \"cluster ns after the snapshot\",");
        for parameter in spec.parameters {
            let doc = parameter.doc.trim().replace('\n', " ").replace('`', "");
            let _ =
                writeln!(out, "      {}\n        | {}\n        | doc {doc:?},", parameter.name, contract(parameter));
        }
        let _ = writeln!(out, "    }}{after}");
        if is_skew {
            let rule = "must lie between a tenth and ten times the denominator";
            let _ = writeln!(
                out,
                "    , base.Rule (fun skew =>\n      base.unless\n        (skew.numerator <= 10 * skew.denominator && skew.denominator <= 10 * skew.numerator)\n        \
                 {rule:?}\n        skew.numerator\n    )],"
            );
        }
    }
    out + TAIL
}

#[test]
fn the_contract_of_faults_is_that_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contracts/lib/fault.ncl");
    let expected = expected();
    if std::env::var("CHAOS_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let line = found.lines().zip(expected.lines()).position(|(a, b)| a != b);
    assert_eq!(found, expected, "{} differs from the fault table from line {line:?} on", path.display());
}
