//! A stream's request, from its head to its log line.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::http2::frame::ErrorCode;

use super::stream::Stream;
use crate::carrier::RequestStream;
use crate::connection::streamed::{self, Fields};
use crate::request::Request;

/// A client that goes on sending to a stream that is answered is told so after this at the latest.
const BEHIND: Duration = Duration::from_millis(200);

/// For so long at most, the rest of a body that was refused is thrown away.
const REST: Duration = Duration::from_secs(1);

/// Starts a stream's request.
pub fn start(stream: Rc<Stream>, fields: Fields) {
    let handle = stream.link.event_loop().handle.clone();
    stream.link.event_loop().busy();
    let running = Running(stream);
    handle.spawn_large(|| serve(running, fields));
}

/// The stream ends with its request, even by a panic.
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
        // Frames that came right behind the head are judged as those of a living stream.
        match stream.is_broken_off() {
            true => stream.throw_away(most, REST.min(served.lingering_timeout)).await,
            false => stream.touched(most).await,
        }
    }
    end(stream, served.malformed);
}

/// Tells the client what it does not know yet of how the stream ended.
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
