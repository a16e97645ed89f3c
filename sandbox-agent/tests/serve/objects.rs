//! Files from and to a store of objects that is reached by a socket inside.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use sandbox_core::{ErrorKind, Secret, WriteOptions};
use sandbox_protocol::{
    Client,
    methods::{self, BytesMoved, FileHttpGet, FileHttpPut, FileHttpPutDone, HttpPlace},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

use crate::support::{Agent, numbered};

const TARGET: &str = "/bucket/key?X-Amz-Signature=canary";

/// A server that reads one request to the end of its announced body, and answers with this.
struct Store {
    socket: PathBuf,
    asked: Arc<Mutex<Vec<u8>>>,
}

impl Store {
    fn start(folder: &Path, name: &str, answer: Vec<u8>) -> Self {
        let socket = folder.join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Arc::<Mutex<Vec<u8>>>::default();
        let all = asked.clone();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            loop {
                let head = text.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
                let announced = head.map(|end| {
                    let head = String::from_utf8_lossy(&text[..end]).into_owned();
                    let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next());
                    end + length.map_or(0, |length| length.parse::<usize>().unwrap())
                });
                if announced.is_some_and(|announced| text.len() >= announced) {
                    break;
                }
                if stream.read_buf(&mut text).await.unwrap() == 0 {
                    break;
                }
            }
            *all.lock().unwrap() = text;
            let _ = stream.write_all(&answer).await;
        });
        Self { socket, asked }
    }

    fn place(&self) -> HttpPlace {
        HttpPlace {
            socket: self.socket.to_str().unwrap().into(),
            host: "bucket.example".into(),
            target: Secret::new(TARGET),
        }
    }

    fn asked(&self) -> Vec<u8> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(status: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

async fn get(client: &Client, store: &Store, size: usize) -> sandbox_core::Result<BytesMoved> {
    let options = WriteOptions { mode: Some(0o751), ..WriteOptions::default() };
    let request = FileHttpGet { path: "a/file".into(), options, from: store.place(), size: size as u64 };
    client.call(methods::FILE_HTTP_GET, &request).await
}

#[tokio::test]
async fn an_object_becomes_a_file_in_one_step_or_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(json!({ "workdir": folder.path().to_str().unwrap() }));
    let client = agent.connect().await;
    let data = numbered(300_000);
    let store = Store::start(folder.path(), "whole", answer("200 OK", &data));
    assert_eq!(get(&client, &store, data.len()).await.unwrap().bytes, data.len() as u64);
    let file = folder.path().join("a/file");
    assert!(std::fs::read(&file).unwrap() == data);
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions()) & 0o7777,
        0o751
    );
    let asked = String::from_utf8(store.asked()).unwrap();
    assert!(asked.starts_with(&format!("GET {TARGET} HTTP/1.1\r\nHost: bucket.example\r\n")), "{asked}");

    let refusal = answer("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>");
    let cut = [&answer("200 OK", &data)[..200_000]].concat();
    for (name, said, size, kind, part) in [
        ("refused", refusal, 5, ErrorKind::PermissionDenied, "403 AccessDenied"),
        ("cut", cut, data.len(), ErrorKind::Unavailable, "broke off"),
        ("other", answer("200 OK", b"other"), 6, ErrorKind::InvalidState, "5 bytes, not 6"),
        ("silent", Vec::new(), 5, ErrorKind::Unavailable, "without an answer"),
        ("nonsense", b"hello\r\n\r\n".to_vec(), 5, ErrorKind::Unavailable, "none"),
        ("endless", vec![b'x'; 20_000], 5, ErrorKind::Unavailable, "end of its head"),
    ] {
        let store = Store::start(folder.path(), name, said);
        let error = get(&client, &store, size).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(part) && !error.to_string().contains("canary"), "{name}: {error}");
        assert!(std::fs::read(&file).unwrap() == data, "{name}: the old file stays");
    }
    let mut nobody = store.place();
    nobody.socket = "/no/such/socket".into();
    let request = FileHttpGet { path: "b/file".into(), from: nobody, size: 1, ..FileHttpGet::default() };
    let error = client.call::<BytesMoved>(methods::FILE_HTTP_GET, &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!folder.path().join("b").exists(), "no folder is made for what does not come");
    let names = std::fs::read_dir(folder.path().join("a")).unwrap().count();
    assert_eq!(names, 1, "no temporary file is left");
}

#[tokio::test]
async fn a_file_becomes_an_object_with_its_size_said_before() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(json!({ "workdir": folder.path().to_str().unwrap() }));
    let client = agent.connect().await;
    let data = numbered(200_000);
    std::fs::write(folder.path().join("file"), &data).unwrap();
    let put = async |store: &Store, path: &str, size_max: u64| {
        let request = FileHttpPut { path: path.into(), to: store.place(), size_max };
        client.call::<FileHttpPutDone>(methods::FILE_HTTP_PUT, &request).await
    };
    let store = Store::start(folder.path(), "put", answer("200 OK", b""));
    let done = put(&store, "file", u64::MAX).await.unwrap();
    assert_eq!(done.stat.unwrap().size, data.len() as u64);
    let asked = store.asked();
    let head = format!(
        "PUT {TARGET} HTTP/1.1\r\nHost: bucket.example\r\nConnection: close\r\nAccept: */*\r\nContent-Length: {}\r\n\r\n",
        data.len()
    );
    assert!(asked == [head.as_bytes(), &data].concat());
    let store = Store::start(folder.path(), "no", answer("507 Full", b""));
    assert_eq!(put(&store, "file", 100_000).await.unwrap_err().kind(), ErrorKind::Exhausted, "too large");
    assert_eq!(put(&store, "none", u64::MAX).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(put(&store, ".", u64::MAX).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let error = put(&store, "file", u64::MAX).await.unwrap_err();
    assert!(error.to_string().contains("507"), "{error}");
}
