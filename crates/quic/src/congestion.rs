//! Congestion control that does not hold back the last packet of a connection.
//!
//! quinn sends CONNECTION_CLOSE only where the congestion window has room, and after a close it takes no acknowledgement that would make
//! room. The packet needs none: it asks for no acknowledgement (RFC 9002, section 2).

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// The window of a closed connection. quinn paces no window that is as large.
const OPEN: u64 = 1 << 32;

/// Makes controllers as another factory does.
pub struct Releasable(pub Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for Releasable {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let inner = self.0.clone().build(now, mtu);
        Box::new(Released { inner, open: Arc::default() })
    }
}

/// The connection of this controller is closed: its last packet may leave.
pub fn release(controller: &dyn Controller) {
    if let Ok(own) = controller.clone_box().into_any().downcast::<Released>() {
        own.open.store(true, Relaxed);
    }
}

struct Released {
    inner: Box<dyn Controller>,
    /// Shared by all copies.
    open: Arc<AtomicBool>,
}

impl Controller for Released {
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
        Box::new(Released { inner: self.inner.clone_box(), open: self.open.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
