// SPDX-License-Identifier: AGPL-3.0-or-later
//! `docs/semantics.md` names a test for each of the twelve points, and every test it names exists.

use std::path::Path;

fn sources(folder: &Path, text: &mut String) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_point_of_the_semantics_is_backed_by_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/semantics.md")).unwrap();
    let mut code = String::new();
    sources(&root.join("vmm"), &mut code);
    let points: Vec<&str> = page.split("\n## ").skip(1).collect();
    assert_eq!(points.len(), 12);
    for (number, point) in (1..).zip(points) {
        assert!(point.starts_with(&format!("{number}. ")), "point {number}");
        // Tests stand in the list at the point's end; their names have at least three words.
        let list = &point[point.find("\n- ").expect("a list of tests")..];
        let names: Vec<&str> =
            list.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() >= 2).collect();
        assert!(!names.is_empty(), "point {number} names no test");
        for name in names {
            assert!(code.contains(&format!("fn {name}()")), "point {number} names {name}, which does not exist");
        }
    }
}
