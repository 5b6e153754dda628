//! A client on a bad line: it sends and reads a few bytes at a time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

const BYTES: usize = 16;
const PAUSE: Duration = Duration::from_millis(5);

pub struct Trickle {
    stream: TcpStream,
    /// Until the next few bytes; an ordinary client has none.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Trickle {
    pub fn new(stream: TcpStream, is_slow: bool) -> Self {
        Self { stream, pause: is_slow.then(|| Box::pin(sleep(PAUSE))) }
    }
}

impl AsyncRead for Trickle {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(pause) = &mut this.pause else {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        };
        ready!(pause.as_mut().poll(context));
        let mut few = [0; BYTES];
        let mut few = ReadBuf::new(&mut few[..BYTES.min(buffer.remaining())]);
        ready!(Pin::new(&mut this.stream).poll_read(context, &mut few))?;
        buffer.put_slice(few.filled());
        pause.as_mut().reset(Instant::now() + PAUSE);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Trickle {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let Some(pause) = &mut this.pause else {
            return Pin::new(&mut this.stream).poll_write(context, bytes);
        };
        ready!(pause.as_mut().poll(context));
        let few = &bytes[..BYTES.min(bytes.len())];
        let sent = ready!(Pin::new(&mut this.stream).poll_write(context, few))?;
        pause.as_mut().reset(Instant::now() + PAUSE);
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
