//! `explain` and `maps` of core files that the kernel wrote.

use crate::fixture;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use fixture::{json, number, pagewise, sum};

/// Returns the core file of `crashing`, which ended in this mode, and the folder that holds the
/// file.
fn core_of(mode: &str) -> Option<(PathBuf, TempDir)> {
    fixture::core_file("crashing", mode)
}

fn explain(core: &Path) -> Value {
    json(&["explain", "--core", core.to_str().unwrap(), "--json"])
}

fn first_finding(report: &Value) -> (&str, &str) {
    let finding = &report["findings"][0];
    (finding["id"].as_str().unwrap(), finding["claim"].as_str().unwrap())
}

#[test]
fn each_end_of_a_program_is_the_first_finding() {
    let cases = [
        ("null", "crash", "accessed address 0x10, near 0: a null pointer."),
        ("readonly", "crash", "crashing, which cannot be written."),
        ("behind", "crash", "which is not mapped: 24 bytes behind the end of "),
        ("abort", "crash", "called abort, "),
        ("stack", "stack-overflow", "used all 1.0M of its stack "),
        ("thread", "stack-overflow", "used all 256K of its stack "),
    ];
    for (mode, id, claim) in cases {
        let Some((core, _folder)) = core_of(mode) else { return };
        let report = explain(&core);
        let found = first_finding(&report);
        assert!(found.0 == id && found.1.contains(claim), "{mode}: {found:?}");
        let signal = if mode == "abort" { "SIGABRT" } else { "SIGSEGV" };
        assert_eq!(report["core"]["signal"], signal, "{mode}");
    }
}

#[test]
fn bytes_in_the_core_add_up_and_are_not_called_resident() {
    let Some((core, _folder)) = core_of("null") else { return };
    let report = explain(&core);
    let reason = "a core file does not record it";
    for key in ["virt", "res", "pss", "uss", "swap"] {
        assert_eq!(report["totals"][key]["absent"], reason, "{key}");
    }
    assert_eq!(report["quadrants"]["absent"], reason);
    for row in report["mappings"].as_array().unwrap() {
        for key in ["rss", "pss", "swap", "dirty"] {
            assert_eq!(row[key]["absent"], reason, "{key}: {row}");
        }
    }
    let in_core = number(&report, "core.in_core");
    assert_eq!(sum(&report["pools"], "in_core"), in_core);
    assert_eq!(sum(&report["pools"], "reserved"), number(&report, "core.mapped"));
    assert_eq!(in_core + number(&report, "core.left_out"), number(&report, "core.mapped"));
    // The core file lacks 4 pages that the program excluded (MADV_DONTDUMP), and unmodified pages
    // of files, which the kernel omits.
    assert!(in_core <= number(&report, "core.size"));

    let page = pagewise(&["explain", "--core", core.to_str().unwrap()]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(
        page.contains("In core") && !page.contains("RSS") && !page.contains("Resident"),
        "{page}"
    );
    let maps = pagewise(&["maps", "--core", core.to_str().unwrap()]);
    assert!(maps.status.success());
    assert!(String::from_utf8(maps.stdout).unwrap().contains(reason));
}

#[test]
fn a_truncated_core_exits_0_and_says_how_much_is_missing() {
    let Some((core, folder)) = core_of("null") else { return };
    let bytes = fs::read(&core).unwrap();
    let cut = folder.path().join("cut");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let report = explain(&cut);
    let missing = number(&report, "core.missing");
    let lost = (bytes.len() - bytes.len() / 2) as u64;
    assert!(missing > lost / 2 && missing <= lost, "{missing} {lost}");
    let ids: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["crash", "truncated-core"]);
}

#[test]
fn a_snapshot_of_a_core_opens_to_the_same_report() {
    let Some((core, folder)) = core_of("abort") else { return };
    let saved = folder.path().join("saved.json");
    let saved = saved.to_str().unwrap();
    let first = pagewise(&["explain", "--core", core.to_str().unwrap(), "--save", saved]);
    let again = pagewise(&["explain", "--from", saved]);
    assert!(first.status.success() && first.stdout == again.stdout);
}

#[test]
fn errors_name_the_file_the_offset_and_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let error = |contents: &[u8]| {
        fs::write(&file, contents).unwrap();
        let output = pagewise(&["explain", "--core", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let name = file.to_str().unwrap();
    assert!(error(b"").contains(&format!("{name}: offset 0x0: expected an ELF header")));
    assert!(error(&fs::read("/bin/sh").unwrap()).contains("offset 0x10: expected a core file"));
    assert!(error(b"\xfd7zXZ\0 and more").contains("decompress it with `xz -dk` first"));
    assert!(
        error(b"\x28\xb5\x2f\xfd not zstd at all").contains("zstd data is damaged or truncated")
    );
    let Some((core, _folder)) = core_of("null") else { return };
    let output = pagewise(&["explain", "--core", core.to_str().unwrap(), "--exe", "/bin/sh"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("/bin/sh is not the program of the core file"), "{message}");
}
