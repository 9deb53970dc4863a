//! The task of a stream's request, from its head to its log line.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::http2::frame::ErrorCode;

use super::stream::Stream;
use crate::carrier::RequestStream;
use crate::connection::streamed::{self, Fields};
use crate::request::Request;

/// The most time that the server waits for the client's next frame, after a complete answer, before it resets the stream.
const BEHIND: Duration = Duration::from_millis(200);

/// The most time for discarding the rest of a body that was refused.
const REST: Duration = Duration::from_secs(1);

/// Starts a stream's request.
pub fn start(stream: Rc<Stream>, fields: Fields) {
    let handle = stream.link.event_loop().handle.clone();
    stream.link.event_loop().busy();
    let running = Running(stream);
    handle.spawn_large(|| serve(running, fields));
}

/// Ends the stream with its request, also after a panic.
struct Running(Rc<Stream>);

impl Drop for Running {
    fn drop(&mut self) {
        let Stream { link, id, .. } = &*self.0;
        link.remove(*id);
        link.event_loop().idle();
    }
}

async fn serve(running: Running, fields: Fields) {
    let stream = &running.0;
    let (conn, event_loop) = (stream.link.conn.clone(), stream.link.event_loop());
    let is_enabled = |r: &Request| r.conf().core.http2.enabled || r.site.protocols(&r.conn).http2;
    let served = streamed::serve(conn, event_loop, stream.clone(), fields, is_enabled).await;
    if !served.malformed && stream.is_closed() && served.lingers {
        let most = BEHIND.min(served.lingering_timeout);
        // Frames that arrive right behind the head must find an open stream.
        match stream.is_body_unfinished() {
            true => stream.discard_body(most, REST.min(served.lingering_timeout)).await,
            false => stream.wait_for_client(most).await,
        }
    }
    end(stream, served.malformed);
}

/// Resets the stream if it is still open, or its request was malformed.
fn end(stream: &Stream, malformed: bool) {
    if stream.is_gone() {
        return;
    }
    let code = match (stream.is_closed(), stream.is_ended()) {
        (false, _) if stream.has_timed_out() => ErrorCode::Protocol,
        (false, _) => ErrorCode::Internal,
        (true, _) if malformed || stream.is_malformed() => ErrorCode::Protocol,
        (true, false) => ErrorCode::NoError,
        (true, true) => return,
    };
    stream.reset(code);
}
