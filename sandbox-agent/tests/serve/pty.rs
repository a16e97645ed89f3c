//! Terminals over the real agent.

use crate::support::{Agent, default_config, eventually, seconds, within};
use sandbox_core::{AttachOptions, ErrorKind, ExecExit, ExecOutcome, PtyEvent, PtyStream, SandboxPtySpec};
use sandbox_protocol::{
    Client,
    methods::{self, PtyAttachRequest, PtyCreate, PtyList},
};

fn spec(command: &str) -> SandboxPtySpec {
    SandboxPtySpec { command: Some(command.into()), ..SandboxPtySpec::default() }
}

async fn create(client: &Client, spec: SandboxPtySpec) -> (String, PtyStream) {
    let request = PtyCreate { session_id: String::new(), spec };
    opened(client.open(methods::PTY_CREATE, &request).await.unwrap()).await
}

async fn attach(client: &Client, id: &str, options: AttachOptions) -> sandbox_core::Result<PtyStream> {
    client.open(methods::PTY_ATTACH, &PtyAttachRequest { session_id: id.to_owned(), options }).await
}

async fn opened(mut stream: PtyStream) -> (String, PtyStream) {
    match within(seconds(10), stream.next()).await.unwrap().unwrap() {
        PtyEvent::Opened { session_id } => (session_id, stream),
        other => panic!("{other:?} came first"),
    }
}

/// What came until the text was there.
async fn until(stream: &mut PtyStream, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match within(seconds(10), stream.next()).await.unwrap_or_else(|error| panic!("{error} after {seen:?}")) {
            Some(PtyEvent::Output(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
    seen
}

struct Rest {
    output: Vec<u8>,
    stderr: Vec<u8>,
    gap: u64,
    exit: ExecExit,
}

async fn rest(mut stream: PtyStream) -> Rest {
    let (mut output, mut stderr, mut gap) = (Vec::new(), Vec::new(), 0);
    loop {
        match within(seconds(20), stream.next()).await.unwrap().unwrap() {
            PtyEvent::Output(bytes) => output.extend_from_slice(&bytes),
            PtyEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            PtyEvent::Gap(bytes) => gap += bytes,
            PtyEvent::Exit(exit) => return Rest { output, stderr, gap, exit },
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_size_is_there_before_the_program_and_follows_a_resize() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    for _ in 0..20 {
        let mut spec = spec("stty size; read line; stty size; exit 5");
        (spec.rows, spec.cols) = (43, 132);
        let (_, mut stream) = create(&client, spec).await;
        until(&mut stream, "43 132\r\n").await;
        stream.resize(50, 101).await.unwrap();
        let error = stream.resize(0, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        stream.write("\n").await.unwrap();
        let rest = rest(stream).await;
        assert!(rest.output.ends_with(b"50 101\r\n"), "{:?}", String::from_utf8_lossy(&rest.output));
        assert_eq!(rest.exit.outcome, ExecOutcome::Exited(5));
    }
}

#[tokio::test]
async fn a_shell_is_interactive_and_interrupts_reach_the_foreground_program() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let (_, mut stream) = create(&client, SandboxPtySpec::default()).await;
    stream.write("tty; echo $((1+1))-up\n").await.unwrap();
    assert!(until(&mut stream, "2-up\r\n").await.contains("/dev/pts/"));
    for by_key in [true, false] {
        stream.write("sleep 300\n").await.unwrap();
        within(seconds(10), sleep_in_foreground(&client)).await;
        match by_key {
            true => stream.write("\x03").await.unwrap(),
            false => stream.signal(2).await.unwrap(),
        }
        stream.write("echo code-$?\n").await.unwrap();
        until(&mut stream, "code-130\r\n").await;
    }
    // The end-of-file key on an empty line, at the prompt: before it the kernel would take the key, and drop it.
    stream.write("PS1='rea''dy> '\n").await.unwrap();
    until(&mut stream, "ready> ").await;
    stream.close_input().await.unwrap();
    assert_eq!(rest(stream).await.exit.outcome, ExecOutcome::Exited(0));
}

/// Waits until the shell has given its terminal to another group, which executes something else.
async fn sleep_in_foreground(client: &Client) {
    let list: PtyList = client.call(methods::PTY_LIST, &methods::Nothing {}).await.unwrap();
    let shell = list.sessions[0].pid.unwrap();
    eventually("the program is in the foreground", async || {
        let stat = std::fs::read_to_string(format!("/proc/{shell}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        std::fs::read(format!("/proc/{}/comm", fields[5])).is_ok_and(|name| name == b"sleep\n")
    })
    .await;
}

#[tokio::test]
async fn pipe_mode_changes_no_byte_and_keeps_the_streams_apart() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let mut spec = spec("read line; printf 'a\\nb'; printf \"e$line\" >&2; test -t 0 || exit 3");
    spec.pty = false;
    let (_, stream) = create(&client, spec).await;
    stream.write("in\n").await.unwrap();
    let error = stream.resize(10, 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let rest = rest(stream).await;
    assert_eq!((rest.output.as_slice(), rest.stderr.as_slice()), (&b"a\nb"[..], &b"ein"[..]));
    assert_eq!(rest.exit.outcome, ExecOutcome::Exited(3));
}

#[tokio::test]
async fn a_session_outlives_its_connection_and_is_replayed_from_any_offset() {
    let agent = Agent::start(default_config());
    let (client, switch) = agent.connect_cuttable().await;
    let (id, mut stream) = create(&client, spec("echo 0123456789; read line; echo got-$line; exit 4")).await;
    until(&mut stream, "9\r\n").await;
    switch.shutdown(std::net::Shutdown::Both).unwrap();
    let second = agent.connect().await;
    eventually("it has no client", async || {
        let list: PtyList = second.call(methods::PTY_LIST, &methods::Nothing {}).await.unwrap();
        !list.sessions[0].attached
    })
    .await;
    let options = AttachOptions { takeover: false, since: Some(4) };
    let (same, mut stream) = opened(attach(&second, &id, options).await.unwrap()).await;
    assert_eq!(same, id);
    assert_eq!(until(&mut stream, "9\r\n").await, "456789\r\n");
    stream.write("x\n").await.unwrap();
    let first = rest(stream).await;
    assert_eq!(first.output, b"x\r\ngot-x\r\n");
    // One that is over still gives its last output and its end.
    let (_, stream) =
        opened(attach(&second, &id, AttachOptions { takeover: false, since: Some(0) }).await.unwrap()).await;
    let again = rest(stream).await;
    assert_eq!(again.output, b"0123456789\r\nx\r\ngot-x\r\n");
    assert_eq!(again.exit.outcome, ExecOutcome::Exited(4));
}

#[tokio::test]
async fn a_takeover_evicts_the_holder_and_without_one_the_attach_is_refused() {
    let agent = Agent::start(default_config());
    let (first, second) = (agent.connect().await, agent.connect().await);
    let (id, mut holder) = create(&first, spec("echo up; read line; echo end")).await;
    until(&mut holder, "up\r\n").await;
    let error = attach(&second, &id, AttachOptions { takeover: false, since: None }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert!(error.message().contains("held"), "{error}");
    let error = attach(&second, "nobody", AttachOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let (_, taken) = opened(attach(&second, &id, AttachOptions::default()).await.unwrap()).await;
    let error = within(seconds(10), holder.next()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert!(error.message().contains("replaced"), "{error}");
    // Neither the end of the evicted session nor its input reaches the session.
    drop(holder);
    taken.write("\n").await.unwrap();
    assert!(rest(taken).await.output.ends_with(b"end\r\n"));
}

#[tokio::test]
async fn what_a_detached_session_writes_beyond_a_mebibyte_is_a_gap_of_exact_size() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let (id, mut stream) =
        create(&client, spec("stty raw; echo up; read line; head -c 3000000 /dev/zero; exit 6")).await;
    until(&mut stream, "up\n").await;
    stream.write("\n").await.unwrap();
    stream.detach().await.unwrap();
    eventually("it has ended", async || {
        let list: PtyList = client.call(methods::PTY_LIST, &methods::Nothing {}).await.unwrap();
        list.sessions[0].exit.is_some()
    })
    .await;
    let options = AttachOptions { takeover: true, since: Some(3) };
    let (_, stream) = opened(attach(&client, &id, options).await.unwrap()).await;
    let rest = rest(stream).await;
    assert_eq!(rest.output.len(), 1 << 20);
    // Echoed input counts as output too.
    let total = rest.gap + rest.output.len() as u64;
    assert!((3_000_000..3_000_010).contains(&total), "{total}");
    assert_eq!(rest.exit.outcome, ExecOutcome::Exited(6));
}

#[tokio::test]
async fn dropping_a_created_session_ends_its_programs() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    for _ in 0..30 {
        let (_, mut stream) = create(&client, spec("(setsid sleep 300 &); echo up; sleep 300")).await;
        until(&mut stream, "up\r\n").await;
    }
    eventually("no session is left", async || {
        let list: PtyList = client.call(methods::PTY_LIST, &methods::Nothing {}).await.unwrap();
        list.sessions.iter().all(|session| session.exit.is_some())
    })
    .await;
}
