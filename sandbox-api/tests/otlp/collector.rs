//! A small collector on the loopback: it keeps what it is sent.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use crate::wire::{self, Metric, Span};

#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    /// In lower case, one on a line; values as they are.
    pub(crate) headers: String,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct Collector {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    ends: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, ends) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::<AtomicBool>::default());
        let accepting = std::thread::spawn({
            let (requests, ends) = (requests.clone(), ends.clone());
            move || {
                for stream in listener.incoming() {
                    if ends.load(Ordering::SeqCst) {
                        return;
                    }
                    let requests = requests.clone();
                    std::thread::spawn(move || serve(stream.unwrap(), &requests));
                }
            }
        });
        Self { address, requests, ends, accepting: Some(accepting) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    fn bodies(&self, path: &str) -> Vec<Vec<u8>> {
        self.requests().into_iter().filter(|request| request.path == path).map(|request| request.body).collect()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        self.bodies("/v1/traces").iter().flat_map(|body| wire::spans(body)).collect()
    }

    /// In the order in which they came: of one name, the last one counts.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        self.bodies("/v1/metrics").iter().flat_map(|body| wire::metrics(body)).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes it.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            accepting.join().unwrap();
        }
    }
}

/// The requests of one connection.
fn serve(stream: TcpStream, requests: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut words = first.split_whitespace();
        assert_eq!(words.next(), Some("POST"), "{first}");
        let path = words.next().unwrap().to_owned();
        let (mut headers, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            let (name, value) = (name.to_ascii_lowercase(), value.trim());
            if name == "content-length" {
                length = value.parse().unwrap();
            }
            headers.push_str(&format!("{name}: {value}\n"));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        requests.lock().unwrap().push(Request { path, headers, body });
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
