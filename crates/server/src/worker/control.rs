//! Orders to a worker: signals, and messages of the master over its channel.

use std::cell::Cell;
use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_acme::Acme;
use weir_engine::{Handle, Remote};
use weir_log::{Cause, Log, OpenLogs, log};
use weir_sys::signal::Descriptor;
use weir_sys::title::Title;

use super::change::{Asking, Newest};
use super::{reopen, stalls, turns};
use crate::channel::{ChannelEnd, Order, Received, WorkerReport};
use crate::cycle::Origin;
use crate::master::Assignment;
use crate::signals::{self, SignalRequest};
use weir_values::Retire;

/// Loop 0's control over all loops of the process.
pub struct Control {
    pub(super) loops: Vec<Remote>,
    handle: Handle,
    acme: Acme,
    pub(super) log: Arc<Log>,
    pub(super) origin: Arc<Origin>,
    /// The newest sites, to which the next change refers.
    pub(super) newest: Arc<Mutex<Newest>>,
    asking: Asking,
    timeout: Option<Duration>,
    /// Whether WINCH has an effect: in nginx only if the server runs in the background.
    daemon: bool,
    finishing: Cell<bool>,
    /// Whether the log says that the worker is shutting down.
    is_told: Arc<AtomicBool>,
    /// The name in ps.
    title: Arc<Mutex<Option<Title>>>,
    /// The channel to the master. None if the process has no master.
    pub(super) channel: Option<ChannelEnd>,
}

impl Control {
    /// Controls `loops`, from the loop of `handle`.
    pub fn new(
        assignment: &Assignment,
        newest: Arc<Mutex<Newest>>,
        loops: Vec<Remote>,
        handle: Handle,
        acme: Acme,
        asking: Asking,
    ) -> Rc<Control> {
        let config = &assignment.cycle.config;
        Rc::new(Control {
            loops,
            handle,
            acme,
            log: Arc::clone(&assignment.cycle.log),
            origin: Arc::clone(&assignment.origin),
            newest,
            asking,
            timeout: config.shutdown_timeout,
            daemon: config.daemon,
            finishing: Cell::new(false),
            is_told: Arc::default(),
            title: Arc::clone(&assignment.title),
            channel: assignment.channel.clone(),
        })
    }

    /// Starts to receive orders and signals. The signals were blocked before the process was
    /// forked.
    pub fn listen(self: &Rc<Self>) -> io::Result<()> {
        let arrivals = Descriptor::new(&signals::set())?;
        let control = Rc::clone(self);
        self.handle.add_watch(arrivals.shared(), move |_| control.take_signals(&arrivals))?;
        let handle = self.handle.clone();
        self.handle.spawn(async move {
            while let Some(left) = weir_ssl::turn_ticket_keys() {
                handle.sleep(left).await;
            }
        });
        match self.channel.clone() {
            Some(channel) => self.listen_to(channel),
            None => Ok(()),
        }
    }

    fn listen_to(self: &Rc<Self>, channel: ChannelEnd) -> io::Result<()> {
        let control = Rc::clone(self);
        let watch = Rc::new(Cell::new(None));
        let own = Rc::clone(&watch);
        let key = self.handle.add_watch(channel.shared(), move |h| {
            if control.take_orders(&channel).is_break()
                && let Some(key) = own.take()
            {
                h.remove_watch(key);
            }
        })?;
        watch.set(Some(key));
        Ok(())
    }

    fn take_signals(self: &Rc<Self>, arrivals: &Descriptor) {
        while let Ok(Some(arrived)) = arrivals.take() {
            let alone = self.channel.is_none();
            let request = signals::request(arrived.number);
            let (order, action) = match request {
                Some(SignalRequest::Quit) => (Some(Order::Quit), ", shutting down"),
                Some(SignalRequest::StopAccepting) if self.daemon => {
                    (Some(Order::Quit), ", shutting down")
                }
                Some(SignalRequest::Terminate) => (Some(Order::Terminate), ", exiting"),
                Some(SignalRequest::Reopen) => (Some(Order::Reopen), ", reopening logs"),
                Some(SignalRequest::Reconfigure) if alone => {
                    (None, ", ignoring: a server without master process cannot reload")
                }
                Some(
                    SignalRequest::Reconfigure
                    | SignalRequest::ChangeBinary
                    | SignalRequest::Nothing,
                ) => (None, ", ignoring"),
                Some(SignalRequest::StopAccepting | SignalRequest::Reap) | None => (None, ""),
            };
            signals::log_arrival(arrived, action, &self.log);
            if alone && request == Some(SignalRequest::ChangeBinary) {
                signals::refuse_change(&self.log);
            }
            if let Some(order) = order {
                self.obey(order);
            }
        }
    }

    /// Reads the master's orders. Breaks if the master has gone. The worker then continues to
    /// serve, as in nginx, and can be ended by signals.
    fn take_orders(self: &Rc<Self>, channel: &ChannelEnd) -> ControlFlow<()> {
        loop {
            let mut fds = Vec::new();
            match channel.next_order(&mut fds) {
                Received::Message(Order::Change) => self.change(fds),
                Received::Message(Order::Outcome) => self.asking.answered(fds),
                Received::Message(order) => self.obey(order),
                Received::Nothing | Received::Invalid => return ControlFlow::Continue(()),
                Received::Closed => {
                    self.asking.master_ended();
                    return ControlFlow::Break(());
                }
            }
        }
    }

    fn obey(self: &Rc<Self>, order: Order) {
        match order {
            Order::Quit => self.finish(Retire::Quit),
            Order::Yield => self.finish(Retire::Yield),
            Order::Retire => self.finish(Retire::Reload),
            Order::Terminate => self.all(|h| h.stop()),
            Order::Reopen => self.reopen(),
            Order::Level(level) => weir_log::set_level(level),
            Order::Look => turns::look(),
            // Handled by the caller, since they have descriptors.
            Order::Change | Order::Outcome => {}
        }
    }

    fn finish(self: &Rc<Self>, how: Retire) {
        let left = Arc::new(AtomicUsize::new(self.loops.len()));
        for remote in &self.loops {
            let (left, channel) = (Arc::clone(&left), self.channel.clone());
            let (log, is_told) = (Arc::clone(&self.log), Arc::clone(&self.is_told));
            let obeyed = move || {
                if left.fetch_sub(1, Ordering::SeqCst) > 1 {
                    return;
                }
                // A reader of this line may rely on it: the loops accept nothing more.
                if !is_told.swap(true, Ordering::SeqCst) {
                    log!(log, Notice, None, "gracefully shutting down");
                }
                if let Some(channel) = channel.filter(|_| how == Retire::Reload) {
                    // A master that has gone waits for nothing.
                    let _ = channel.report(WorkerReport::Retired);
                }
            };
            remote.post(Box::new(move |_| turns::finish(how, obeyed)));
        }
        self.acme.stop();
        if !self.finishing.replace(true) {
            stalls::retitle(&self.title);
            self.limit();
        }
    }

    /// Ends the loops after `worker_shutdown_timeout`.
    fn limit(self: &Rc<Self>) {
        let Some(timeout) = self.timeout.filter(|timeout| !timeout.is_zero()) else { return };
        let control = Rc::clone(self);
        self.handle.spawn(async move {
            control.handle.sleep(timeout).await;
            control.all(turns::shut_down);
        });
    }

    fn reopen(&self) {
        log!(self.log, Notice, None, "reopening logs");
        let (logs, log) = (Arc::clone(&self.origin.logs), Arc::clone(&self.log));
        let open = move || reopen_all(&logs, &log);
        reopen::reopen(&self.loops, &self.handle, turns::flush_logs, open);
    }

    /// Runs `what` on every loop.
    fn all(&self, what: impl Fn(&Handle) + Send + Copy + 'static) {
        for remote in &self.loops {
            remote.post(Box::new(what));
        }
    }
}

/// Reopens all log files. May block.
fn reopen_all(logs: &OpenLogs, log: &Log) {
    for (path, e) in logs.reopen_all(None) {
        log!(log, Emerg, None, "open() \"{}\" failed {}", path.display(), Cause(&e));
    }
    crate::boot::redirect_stderr(log);
}
