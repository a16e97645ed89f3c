//! A TCP stream that acknowledges at once.
//!
//! OpenSSH's server holds small packets back until what it sent before is acknowledged, for a connection that only
//! forwards. Linux waits up to 40 ms with that when it has nothing to say itself: an answer of two packets would take that
//! long. The kernel leaves this mode by itself, so every read asks for it again.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Acknowledges what it reads at once; everything else is the stream's.
pub(super) struct Prompt(TcpStream);

impl Prompt {
    pub(super) fn new(stream: TcpStream) -> Self {
        let this = Self(stream);
        this.acknowledge();
        this
    }

    fn acknowledge(&self) {
        // A socket that cannot is slower, not wrong.
        let _ = rustix::net::sockopt::set_tcp_quickack(&self.0, true);
    }
}

impl AsyncRead for Prompt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(context, buffer);
        if read.is_ready() {
            self.acknowledge();
        }
        read
    }
}

impl AsyncWrite for Prompt {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        time::{Duration, Instant},
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// The other side's kernel holds the second packet of each answer back, as it does for OpenSSH's server. Without this
    /// stream each answer takes 40 ms, once the connection is some packets old.
    #[tokio::test]
    async fn an_answer_of_two_small_packets_does_not_wait_for_a_timer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.read(&mut [0]).unwrap() > 0 {
                stream.write_all(b"1").unwrap();
                stream.write_all(b"2").unwrap();
            }
        });
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut prompt = Prompt::new(stream);
        let mut times = Vec::new();
        for _ in 0..50 {
            let begin = Instant::now();
            prompt.write_all(b"?").await.unwrap();
            prompt.read_exact(&mut [0; 2]).await.unwrap();
            times.push(begin.elapsed());
        }
        drop(prompt);
        other.join().unwrap();
        // The fastest: a busy machine makes any of them slow.
        let fastest = times[25..].iter().min().unwrap();
        assert!(*fastest < Duration::from_millis(20), "{times:?}");
    }

    #[tokio::test]
    async fn it_acknowledges_at_once_after_every_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        let mut prompt = Prompt::new(stream);
        assert!(rustix::net::sockopt::tcp_quickack(&prompt.0).unwrap());
        rustix::net::sockopt::set_tcp_quickack(&prompt.0, false).unwrap();
        other.write_all(b"12").await.unwrap();
        prompt.read_exact(&mut [0; 2]).await.unwrap();
        assert!(rustix::net::sockopt::tcp_quickack(&prompt.0).unwrap());
        prompt.write_all(b"34").await.unwrap();
        let mut back = [0; 2];
        other.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"34");
    }
}
