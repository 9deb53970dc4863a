//! Bytes in both directions, after a server agreed to another protocol (101).

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use weir_engine::{Chain, Handle};
use weir_tls::Wire;

/// One read of a tunnel.
const PIECE: usize = 16 * 1024;

/// What went through.
#[derive(Debug, Default, Clone, Copy)]
pub struct Passed {
    /// From the client to the server.
    pub up: u64,
    /// From the server to the client.
    pub down: u64,
}

/// Passes bytes until one side is done and the other has nothing more, or until neither has sent anything for
/// `timeout`.
pub async fn run(
    handle: &Handle,
    client: &Wire,
    server: &Wire,
    timeout: Duration,
) -> (Passed, io::Result<()>) {
    let mut passed = Passed::default();
    let result = {
        let up = one_way(handle, client, server, timeout, &mut passed.up);
        let down = one_way(handle, server, client, timeout, &mut passed.down);
        let (mut up, mut down) = (pin!(up), pin!(down));
        let mut up_first = false;
        // nginx ends the tunnel with the first direction that ends. They share the task's budget, so each goes first
        // every other time.
        poll_fn(|cx| {
            up_first = !up_first;
            if up_first && let Poll::Ready(result) = up.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            let result = down.as_mut().poll(cx);
            if up_first || result.is_ready() { result } else { up.as_mut().poll(cx) }
        })
        .await
    };
    (passed, result)
}

async fn one_way(
    handle: &Handle,
    from: &Wire,
    to: &Wire,
    timeout: Duration,
    count: &mut u64,
) -> io::Result<()> {
    loop {
        from.set_deadline(Some(handle.now() + timeout));
        to.set_deadline(Some(handle.now() + timeout));
        from.readable().await?;
        let mut buf = handle.take_buf(PIECE);
        let Some(n) = from.try_recv(&mut buf)? else {
            handle.give_buf(buf);
            continue;
        };
        if n == 0 {
            handle.give_buf(buf);
            return Ok(());
        }
        let mut chain = Chain::new();
        chain.push(buf);
        to.send(&mut chain).await?;
        *count += n as u64;
    }
}
