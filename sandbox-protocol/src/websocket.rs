//! A WebSocket as a byte stream: what its binary messages hold, one after the other.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message},
};

/// Most bytes of one message: what is between the two ends may take no more than 1 MiB.
const MESSAGE_BYTES: usize = 128 * 1024;

/// A WebSocket that carries the bytes of a connection. Where messages begin and end means nothing; texts are refused.
#[derive(Debug)]
pub struct WebSocketIo<S> {
    socket: WebSocketStream<S>,
    rest: Bytes,
    is_over: bool,
}

impl<S> WebSocketIo<S> {
    /// The bytes of a socket whose handshake is done.
    pub fn new(socket: WebSocketStream<S>) -> Self {
        Self { socket, rest: Bytes::new(), is_over: false }
    }
}

fn failed(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        error => io::Error::other(error),
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() && !self.is_over {
            match ready!(self.socket.poll_next_unpin(context)) {
                Some(Ok(Message::Binary(bytes))) => self.rest = bytes,
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a text among the bytes")));
                }
                Some(Ok(Message::Close(_)) | Err(Error::ConnectionClosed | Error::AlreadyClosed)) | None => {
                    self.is_over = true;
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(failed(error))),
            }
        }
        let count = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketIo<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(buffer)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.socket.poll_ready_unpin(context)).map_err(failed)?;
        let all: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut message = BytesMut::with_capacity(all.min(MESSAGE_BYTES));
        for buffer in buffers {
            let room = MESSAGE_BYTES - message.len();
            message.extend_from_slice(&buffer[..buffer.len().min(room)]);
        }
        let count = message.len();
        if count > 0 {
            self.socket.start_send_unpin(Message::Binary(message.freeze())).map_err(failed)?;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_flush_unpin(context).map_err(failed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(self.socket.poll_close_unpin(context)) {
            Ok(()) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(failed(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};

    use super::{MESSAGE_BYTES, WebSocketIo};

    #[tokio::test]
    async fn bytes_of_any_number_arrive_in_order_and_the_end_is_an_end() {
        let (near, far) = tokio::io::duplex(4096);
        let mut near = WebSocketIo::new(WebSocketStream::from_raw_socket(near, Role::Client, None).await);
        let mut far = WebSocketIo::new(WebSocketStream::from_raw_socket(far, Role::Server, None).await);
        let sent: Vec<u8> = (0..3 * MESSAGE_BYTES + 7).map(|at| at as u8).collect();
        let expected = sent.clone();
        let sending = tokio::spawn(async move {
            near.write_all(&sent).await.unwrap();
            near.shutdown().await.unwrap();
            near
        });
        let mut arrived = Vec::new();
        far.read_to_end(&mut arrived).await.unwrap();
        assert!(arrived == expected, "{} of {} bytes, or others", arrived.len(), expected.len());
        drop(sending.await.unwrap());
    }
}
