//! Pages of known failures against the tests in the code.

use std::{collections::BTreeSet, fs, path::Path};

/// The pages, and how many rows of each kind they have.
const PAGES: &[(&str, &[(char, usize)])] = &[
    (
        "docs/cases.md",
        &[('A', 34), ('B', 11), ('C', 16), ('D', 7), ('E', 6), ('F', 9), ('G', 9), ('H', 14), ('I', 4), ('J', 5)],
    ),
    ("providers/daytona/CASES.md", &[('D', 16), ('R', 33)]),
];

/// What has no test, with a reason on the page. Whoever writes one takes it from here.
const WITHOUT: &[&str] = &["B03", "C09", "C10", "E04", "F05", "F06", "G06", "J04"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The cells of every row of a page: number, what, tests.
fn rows(page: &str) -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join(page)).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |"));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Every test and every case of the conformance suite.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
            if entry.file_type().unwrap().is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") {
                collect(&fs::read_to_string(path).unwrap(), &mut found);
            }
        }
    }
    found
}

fn collect(code: &str, found: &mut BTreeSet<String>) {
    let (mut is_test, mut group) = (false, None);
    for line in code.lines().map(str::trim) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        if let Some((before, name)) = line.split_once("fn ")
            && ["", "async ", "pub ", "pub async "].contains(&before)
        {
            if std::mem::take(&mut is_test) {
                found.insert(name.split('(').next().unwrap_or_default().to_owned());
            }
        } else if let Some(rest) = line.strip_prefix("cases! { \"") {
            group = rest.split('"').next();
        } else if line == "}" {
            group = None;
        } else if let (Some(group), Some((name, _))) = (group, line.split_once(", \"")) {
            found.insert(format!("{group}.{name}"));
        }
    }
}

#[test]
fn every_known_failure_has_its_row_and_a_test_or_a_reason() {
    for (page, kinds) in PAGES {
        let rows = rows(page);
        let numbers =
            kinds.iter().flat_map(|(kind, count)| (1..=*count).map(move |number| format!("{kind}{number:02}")));
        let wanted: Vec<String> = numbers.collect();
        assert_eq!(rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>(), wanted, "{page}");
        for row in &rows {
            assert_eq!(row.len(), 3, "{row:?}");
            assert!(!row[1].is_empty(), "{}", row[0]);
            let has_reason = row[2].starts_with("not here: ");
            assert_eq!(has_reason, WITHOUT.contains(&row[0].as_str()), "{}", row[0]);
            assert!(has_reason || row[2].contains('`'), "{} has no test", row[0]);
        }
    }
}

#[test]
fn every_name_on_the_pages_is_a_test() {
    let tests = tests();
    assert!(tests.len() > 1000, "{}", tests.len());
    let mut missing = Vec::new();
    for row in PAGES.iter().flat_map(|(page, _)| rows(page)) {
        for name in row[2].split('`').skip(1).step_by(2).filter(|name| !tests.contains(*name)) {
            missing.push(format!("{}: {name}", row[0]));
        }
    }
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}
