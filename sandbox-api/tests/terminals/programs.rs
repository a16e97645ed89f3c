//! Programs that people use in a terminal.

use sandbox_api::{PtyExec, SandboxPtySpec};

use crate::{
    on::{On, on_each},
    support::{PATIENCE, rest, text, until},
};

on_each! {
    vim_edits_a_file,
    top_draws_its_screen_in_the_size_of_the_terminal_and_quits,
    a13_a_flood_of_ten_megabytes_comes_whole,
}

fn script(command: &str) -> SandboxPtySpec {
    SandboxPtySpec {
        command: Some(command.into()),
        env: [("TERM", "xterm"), ("HOME", "/tmp")].into_iter().collect(),
        ..SandboxPtySpec::default()
    }
}

async fn vim_edits_a_file(on: On) {
    let (place, editor) = (on.place(), on.editor());
    let sandbox = place.start_with(editor.spec).await;
    let session = sandbox.pty().create(script(editor.command)).await.unwrap();
    // It has drawn its screen: lines without text begin with a tilde.
    until(&session, "~").await;
    session.write("isome \u{e9}\u{20ac} text").await.unwrap();
    if let Some([inserting, _]) = editor.modes {
        until(&session, inserting).await;
    }
    session.write("\x1b").await.unwrap();
    if let Some([_, commands]) = editor.modes {
        until(&session, commands).await;
    }
    session.write(":wq\r").await.unwrap();
    assert_eq!(session.wait_exit(PATIENCE).await.unwrap().outcome.return_code(), 0);
    assert_eq!(sandbox.read_file("/tmp/f.txt").await.unwrap(), "some \u{e9}\u{20ac} text\n");
    sandbox.stop().await.unwrap();
}

async fn top_draws_its_screen_in_the_size_of_the_terminal_and_quits(on: On) {
    let (place, top) = (on.place(), on.top());
    let sandbox = place.start_with(top.spec).await;
    let session = sandbox.pty().create(SandboxPtySpec { rows: 30, cols: 100, ..script(top.command) }).await.unwrap();
    until(&session, "PID").await;
    session.resize(40, 120).await.unwrap();
    session.write("q").await.unwrap();
    assert_eq!(session.wait_exit(PATIENCE).await.unwrap().outcome.return_code(), 0);
    sandbox.stop().await.unwrap();
}

async fn a13_a_flood_of_ten_megabytes_comes_whole(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    const BYTES: usize = 10_000_000;
    let command = "stty raw; head -c 10000000 /dev/zero | tr '\\0' x; exit 3";
    let session = sandbox.pty().create(script(command)).await.unwrap();
    let (output, gap) = rest(&session).await;
    assert_eq!((output.len(), gap), (BYTES, 0));
    assert!(output.iter().all(|byte| *byte == b'x'));
    assert_eq!(session.wait_exit(PATIENCE).await.unwrap().outcome.return_code(), 3);
    // The same in a shell that stays.
    let shell = sandbox.pty().create(SandboxPtySpec { pty: false, ..SandboxPtySpec::default() }).await.unwrap();
    let flood = PtyExec::new("head -c 10000000 /dev/zero | tr '\\0' y").with_session(&shell);
    let result = sandbox.pty().exec(flood).await.unwrap();
    assert_eq!((result.stdout.len(), result.truncated()), (BYTES, false));
    let after = sandbox.pty().exec(PtyExec::new("echo after").with_session(&shell)).await.unwrap();
    assert_eq!(text(&after.stdout), "after\n");
    sandbox.stop().await.unwrap();
}
