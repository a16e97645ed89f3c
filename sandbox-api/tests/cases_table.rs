//! The tables of tests in the documentation, and README's example, against the code.

use std::{collections::BTreeSet, fs, path::Path};

/// A page with a table of tests.
struct Page {
    file: &'static str,
    /// How many rows of each kind there are.
    kinds: &'static [(char, usize)],
    /// What has no test, with a reason on the page. Whoever writes one takes it from here.
    without: &'static [&'static str],
}

/// Failures of other systems, what the boundary and the plugin host promise, and what the model's provider does.
const PAGES: [Page; 3] = [
    Page {
        file: "docs/cases.md",
        kinds: &[
            ('A', 34),
            ('B', 11),
            ('C', 16),
            ('D', 7),
            ('E', 6),
            ('F', 9),
            ('G', 9),
            ('H', 14),
            ('I', 4),
            ('J', 5),
        ],
        without: &[],
    },
    Page {
        file: "docs/abi.md",
        kinds: &[('A', 4), ('B', 25), ('F', 13), ('L', 16), ('R', 14), ('V', 6)],
        without: &["B17", "B20"],
    },
    Page { file: "providers/daytona/CASES.md", kinds: &[('D', 16), ('R', 33)], without: &[] },
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The cells of every row: number, what, tests. Other tables have no numbers.
fn rows(page: &Page) -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join(page.file)).unwrap();
    let is_numbered = |line: &&str| {
        let mut number = line.trim_start_matches("| ").chars();
        line.starts_with("| ")
            && number.next().is_some_and(|kind| kind.is_ascii_uppercase())
            && number.next().is_some_and(|digit| digit.is_ascii_digit())
    };
    let rows = page.lines().filter(is_numbered);
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
fn everything_that_is_promised_has_its_row_and_a_test_or_a_reason() {
    for page in &PAGES {
        let rows = rows(page);
        let numbers = page.kinds.iter();
        let numbers = numbers.flat_map(|(kind, count)| (1..=*count).map(move |number| format!("{kind}{number:02}")));
        let wanted: Vec<String> = numbers.collect();
        assert_eq!(rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>(), wanted, "{}", page.file);
        for row in &rows {
            assert_eq!(row.len(), 3, "{row:?}");
            assert!(!row[1].is_empty(), "{}", row[0]);
            let has_reason = row[2].starts_with("not here: ");
            assert_eq!(has_reason, page.without.contains(&row[0].as_str()), "{} {}", page.file, row[0]);
            assert!(has_reason || row[2].contains('`'), "{} {} has no test", page.file, row[0]);
        }
    }
}

#[test]
fn every_name_on_the_pages_is_a_test() {
    let tests = tests();
    assert!(tests.len() > 1000, "{}", tests.len());
    let mut missing = Vec::new();
    for page in &PAGES {
        for row in rows(page) {
            for name in row[2].split('`').skip(1).step_by(2).filter(|name| !tests.contains(*name)) {
                missing.push(format!("{} {}: {name}", page.file, row[0]));
            }
        }
    }
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

/// What every processor of a kind has, and what only some have.
#[test]
fn g06_nothing_is_built_for_the_processor_of_the_machine_that_builds_it() {
    let tuned = [
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("avx", cfg!(target_feature = "avx")),
        ("bmi2", cfg!(target_feature = "bmi2")),
        ("lse", cfg!(target_feature = "lse")),
        ("sve", cfg!(target_feature = "sve")),
    ];
    let tuned: Vec<_> = tuned.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).collect();
    assert!(tuned.is_empty(), "this build needs {tuned:?}: it does not start on every machine");
    // Nor do builds that others make of this repository, or the program inside of sandboxes.
    let words = [concat!("target", "-cpu"), concat!("target", "_cpu")];
    let (mut folders, mut looked_at) = (vec![root().to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
            if entry.file_type().unwrap().is_dir() {
                if !["target", "node_modules", ".git"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if [".toml", ".rs", ".yml", ".yaml", ".sh"].iter().any(|end| name.ends_with(end)) {
                looked_at += 1;
                let text = fs::read_to_string(&path).unwrap_or_default();
                assert!(!words.iter().any(|word| text.contains(word)), "{} names a processor", path.display());
            }
        }
    }
    assert!(looked_at > 500, "{looked_at} files");
}

/// The example is built by every check and run as a command of README.md.
#[test]
fn the_example_of_the_readme_is_the_one_that_is_run() {
    let lines = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let readme = read("README.md");
    let (_, example) = readme.split_once("```rust\nuse sandbox_api::").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    assert!(lines(&read("examples/hello.rs")).contains(&lines(example)), "README.md has another example: {example}");
}
