//! Congestion controllers that let the CONNECTION_CLOSE of a connection pass.
//!
//! quinn sends CONNECTION_CLOSE only if the congestion window is not full, and after a close it processes no ACK that would free
//! the window. But such a packet is not ack-eliciting, so congestion control does not apply to it (RFC 9002, section 2).

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// The congestion window of a closed connection. quinn does not pace a window of this size.
const OPEN: u64 = 1 << 32;

/// Wraps the controllers of another factory, for [`release`].
pub struct ReleasableFactory(pub Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for ReleasableFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let inner = self.0.clone().build(now, mtu);
        Box::new(ReleasableController { inner, open: Arc::default() })
    }
}

/// Opens the congestion window of a closed connection.
pub fn release(controller: &dyn Controller) {
    if let Ok(own) = controller.clone_box().into_any().downcast::<ReleasableController>() {
        own.open.store(true, Relaxed);
    }
}

struct ReleasableController {
    inner: Box<dyn Controller>,
    /// [`release`] was called. All clones share the flag.
    open: Arc<AtomicBool>,
}

impl Controller for ReleasableController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest: Option<u64>,
    ) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent: bool,
        lost_bytes: u64,
    ) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        if self.open.load(Relaxed) { OPEN } else { self.inner.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(ReleasableController { inner: self.inner.clone_box(), open: self.open.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
