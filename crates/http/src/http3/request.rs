//! The task of a stream's request, from its head to the end of the stream.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::http3::ErrorCode;

use super::stream::Stream;
use crate::carrier::RequestStream;
use crate::connection::streamed::{self, Fields};
use crate::request::Request;

/// A client that sends a body that is not needed is told to stop once it has paused for so long.
const PAUSE: Duration = Duration::from_secs(1);

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
        let Stream { link, .. } = &*self.0;
        if !self.0.is_closed() {
            self.0.reset(ErrorCode::Internal);
        }
        link.event_loop().idle();
        self.0.request_has_ended();
    }
}

async fn serve(running: Running, fields: Fields) {
    let stream = &running.0;
    let Ok(conn) = stream.link.conn() else { return };
    let event_loop = stream.link.event_loop();
    let hq = stream.link.is_hq();
    let is_enabled = |r: &Request| {
        let http3 = &r.conf().core.http3;
        if hq { http3.hq } else { http3.enabled }
    };
    let served = streamed::serve(conn, event_loop, stream.clone(), fields, is_enabled).await;
    if !stream.is_closed() && !stream.is_gone() && !stream.has_timed_out() {
        stream.link.flush_before_reset(stream).await;
    }
    if !served.malformed && stream.is_closed() && served.lingers {
        let pause = PAUSE.min(served.lingering_timeout);
        stream.discard_body(pause, served.lingering_time).await;
    }
    end(stream, served.malformed);
}

/// Ends both directions of the stream as far as they are open.
fn end(stream: &Stream, malformed: bool) {
    if stream.is_gone() {
        return;
    }
    match (stream.is_closed(), stream.is_ended()) {
        (false, _) if stream.has_timed_out() => stream.reset(ErrorCode::RequestCancelled),
        (false, _) => stream.reset(ErrorCode::Internal),
        // The answer is being sent. The rest of the request is not needed.
        (true, _) if malformed || stream.is_malformed() => stream.stop(),
        (true, false) => stream.stop(),
        (true, true) => {}
    }
}
