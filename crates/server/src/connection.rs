//! One connection: its socket with limits, and whether somebody is still at the other end.
//!
//! Must not know what is asked or answered.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};

/// How often a socket that has something to read is looked at for its end.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long what a client still sends is read after the last answer. Closing a socket with unread bytes would make the
/// system throw away the answer on its way.
const LINGER: Duration = Duration::from_secs(2);

/// The client's end of a connection.
#[derive(Clone)]
pub(crate) struct Peer {
    stream: Arc<TcpStream>,
    address: SocketAddr,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream, address: SocketAddr) -> Peer {
        // Tokens are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        Peer { stream: Arc::new(stream), address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns when the client has closed the connection, or its sending half: the two look the same from here.
    pub(crate) async fn gone(&self) {
        loop {
            match self.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(LOOK_AGAIN).await,
                _ => return,
            }
        }
    }

    /// The socket for the HTTP side.
    pub(crate) fn socket(&self, write_limit: Duration) -> Socket {
        Socket { stream: Arc::clone(&self.stream), write_limit, deadline: None }
    }

    /// Ends the connection without losing what was written last.
    pub(crate) async fn linger(&self) {
        if SockRef::from(&*self.stream).shutdown(Shutdown::Write).is_err() {
            return;
        }
        let mut waste = [0_u8; 16 << 10];
        let drain = async {
            loop {
                self.stream.readable().await?;
                match self.stream.try_read(&mut waste) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err::<(), io::Error>(e),
                }
            }
        };
        let _ = timeout(LINGER, drain).await;
    }
}

/// A socket that fails when the other side takes nothing for too long.
pub(crate) struct Socket {
    stream: Arc<TcpStream>,
    write_limit: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    fn poll_writing(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => match write(&self.stream) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    result => {
                        self.deadline = None;
                        return Poll::Ready(result);
                    }
                },
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => break,
            }
        }
        let limit = self.write_limit;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
                Ok(n) => {
                    buffer.advance(n);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, |stream| stream.try_write_vectored(buffers))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(Shutdown::Write))
    }
}
