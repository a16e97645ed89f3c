//! Files and folders.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::support::{Answer, Daemon};

/// A form of files with what is said of each.
async fn upload(daemon: &Daemon, files: &[(serde_json::Value, &[u8])]) -> Answer {
    let mut form = Vec::new();
    for (metadata, contents) in files {
        let head = "--b\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\r\n";
        form.extend_from_slice(format!("{head}{metadata}\r\n--b\r\nContent-Disposition: form-data; ").as_bytes());
        form.extend_from_slice(b"name=\"file\"; filename=\"x; name=\\\"metadata\\\"\"\r\n\r\n");
        form.extend_from_slice(contents);
        form.extend_from_slice(b"\r\n");
    }
    form.extend_from_slice(b"--b--\r\n");
    let kind = [("content-type", "multipart/form-data; boundary=b")];
    daemon.call_with("POST", "/files/upload", &kind, form).await
}

#[tokio::test]
async fn files_go_in_with_their_mode_and_come_out_whole_and_in_parts() {
    let daemon = Daemon::start();
    let (small, large) = (daemon.path("new/small"), daemon.path("large"));
    let contents: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7) as u8).collect();
    let files = [
        (json!({ "path": small, "mode": 750, "owner": null }), &b"one\ntwo\nthree"[..]),
        (json!({ "path": large }), &contents[..]),
    ];
    assert_eq!(upload(&daemon, &files).await.status, 200);
    assert_eq!(std::fs::metadata(&small).unwrap().permissions().mode() & 0o777, 0o750);
    assert!(std::fs::read(&large).unwrap() == contents);
    let whole = daemon.get(&format!("/files/download?path={large}")).await;
    assert!(whole.status == 200 && whole.body == contents);
    let part = async |range: &str| {
        let path = format!("/files/download?path={small}");
        let answer = daemon.call_with("GET", &path, &[("range", range)], "").await;
        (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
    };
    assert_eq!(part("bytes=4-6").await, (206, "two".to_owned()));
    assert_eq!(part("bytes=8-").await, (206, "three".to_owned()));
    assert_eq!(part("bytes=-5").await, (206, "three".to_owned()));
    assert_eq!(part("bytes=99-").await.0, 416);
    let lines = daemon.get(&format!("/files/download?path={small}&offset=2&limit=1")).await;
    assert_eq!(&lines.body[..], b"two\n");
    assert_eq!(daemon.get("/files/download?path=/no/such").await.refusal(), (404, "FILE_NOT_FOUND".to_owned()));
    assert_eq!(daemon.get("/files/download?path=/").await.refusal().0, 500);
}

#[tokio::test]
async fn a_form_that_is_not_in_pairs_is_refused_and_leaves_nothing_half_written() {
    let daemon = Daemon::start();
    let target = daemon.path("kept");
    std::fs::write(&target, "old").unwrap();
    let kind = [("content-type", "multipart/form-data; boundary=b")];
    let metadata = format!(
        "--b\r\nContent-Disposition: form-data; name=metadata; filename=m\r\n\r\n{{\"path\":\"{target}\"}}\r\n"
    );
    let alone = daemon.call_with("POST", "/files/upload", &kind, format!("{metadata}--b--\r\n")).await;
    assert_eq!(alone.refusal(), (400, "INVALID_FILE".to_owned()));
    let cut = format!("{metadata}--b\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\nnew");
    assert_eq!(daemon.call_with("POST", "/files/upload", &kind, cut).await.refusal(), (400, "INVALID_FILE".to_owned()));
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
    let relative = upload(&daemon, &[(json!({ "path": "relative" }), b"")]).await;
    assert_eq!(relative.refusal(), (400, "INVALID_FILE_METADATA".to_owned()));
}

#[tokio::test]
async fn entries_are_described_found_changed_moved_and_removed() {
    let daemon = Daemon::start();
    let (root, file) = (daemon.path("root"), daemon.path("root/a/b.txt"));
    let made = daemon.post("/directories", json!({ (daemon.path("root/a/c")): { "mode": 700 } })).await;
    assert_eq!(made.status, 200);
    std::fs::write(&file, "x-x").unwrap();
    std::os::unix::fs::symlink("b.txt", daemon.path("root/a/link")).unwrap();
    let info = daemon.get(&format!("/files/info?path={file}")).await.json();
    assert_eq!((&info[&file]["type"], &info[&file]["size"]), (&json!("file"), &json!(3)));
    assert_eq!(daemon.get("/files/info?path=/no/such").await.refusal().0, 404);
    let paths = |answer: Answer| -> Vec<String> {
        let entries = answer.json();
        entries.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap().replace(&root, "")).collect()
    };
    let list = async |depth: u32| daemon.get(&format!("/directories/list?path={root}&depth={depth}")).await;
    assert_eq!(paths(list(1).await), ["/a"]);
    assert_eq!(paths(list(2).await), ["/a", "/a/b.txt", "/a/c", "/a/link"]);
    assert_eq!(paths(daemon.get(&format!("/files/search?path={root}&pattern=*.txt")).await), ["/a/b.txt"]);
    let replaced = daemon.post("/files/replace?verbose=true", json!({ (&file): { "old": "x", "new": "yy" } })).await;
    assert_eq!(replaced.json()[&file]["replacedCount"], 2);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "yy-yy");
    assert_eq!(daemon.post("/files/replace", json!({ (&file): { "old": "", "new": "" } })).await.refusal().0, 400);
    assert_eq!(daemon.post("/files/permissions", json!({ (&file): { "mode": 600 } })).await.status, 200);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let moved = daemon.path("root/new/d");
    assert_eq!(daemon.post("/files/mv", json!([{ "src": file, "dest": moved }])).await.status, 200);
    assert_eq!(daemon.post("/files/mv", json!([{ "src": file, "dest": moved }])).await.refusal().0, 404);
    let taken = json!([{ "src": daemon.path("root/a/c"), "dest": moved }]);
    assert_eq!(daemon.post("/files/mv", taken).await.refusal().0, 500);
    assert_eq!(daemon.call("DELETE", &format!("/files?path={moved}&path=/no/such"), "").await.status, 200);
    assert_eq!(daemon.call("DELETE", &format!("/files?path={root}"), "").await.refusal().0, 500);
    assert_eq!(daemon.call("DELETE", &format!("/directories?path={root}"), "").await.status, 200);
    assert!(!std::path::Path::new(&root).exists());
}
