//! Orders to a worker: by signals, and by the master over its channel.

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
use crate::channel::{ChannelEnd, Heard, Order, WorkerReport};
use crate::cycle::Origin;
use crate::master::Assignment;
use crate::signals::{self, SignalRequest};
use weir_values::Retire;

/// Loop 0's hold on all loops of the process.
pub struct Control {
    pub(super) loops: Vec<Remote>,
    handle: Handle,
    acme: Acme,
    pub(super) log: Arc<Log>,
    pub(super) origin: Arc<Origin>,
    /// What is served, for the site that comes after it.
    pub(super) newest: Arc<Mutex<Newest>>,
    asking: Asking,
    timeout: Option<Duration>,
    /// Whether WINCH means anything: nginx heeds it in the background only.
    daemon: bool,
    finishing: Cell<bool>,
    /// The log says so.
    is_told: Arc<AtomicBool>,
    /// The name in ps.
    title: Arc<Mutex<Option<Title>>>,
    /// The line to the master; without one this process is its own master.
    pub(super) channel: Option<ChannelEnd>,
}

impl Control {
    /// Control over `loops`, from the loop of `handle`.
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

    /// Begins to take signals, which are blocked since before the process forked, and orders.
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
            let wish = signals::wish(arrived.number);
            let (order, action) = match wish {
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
            signals::tell(arrived, action, &self.log);
            if alone && wish == Some(SignalRequest::ChangeBinary) {
                signals::refuse_change(&self.log);
            }
            if let Some(order) = order {
                self.obey(order);
            }
        }
    }

    /// Reads what the master says; the break means that it is gone. Then the worker serves on,
    /// as nginx's does, and can be ended by signals.
    fn take_orders(self: &Rc<Self>, channel: &ChannelEnd) -> ControlFlow<()> {
        loop {
            let mut fds = Vec::new();
            match channel.next_order(&mut fds) {
                Heard::Said(Order::Change) => self.change(fds),
                Heard::Said(Order::Outcome) => self.asking.answered(fds),
                Heard::Said(order) => self.obey(order),
                Heard::Nothing | Heard::Nonsense => return ControlFlow::Continue(()),
                Heard::Gone => return ControlFlow::Break(()),
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
            // They come with descriptors.
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
                // A reader of the line may rely on it: the loops take nothing more.
                if !is_told.swap(true, Ordering::SeqCst) {
                    log!(log, Notice, None, "gracefully shutting down");
                }
                if let Some(channel) = channel.filter(|_| how == Retire::Reload) {
                    // A master that is gone waits for nothing.
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

    /// Ends the loops when `worker_shutdown_timeout` has passed.
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

    /// Runs something on every loop.
    fn all(&self, what: impl Fn(&Handle) + Send + Copy + 'static) {
        for remote in &self.loops {
            remote.post(Box::new(what));
        }
    }
}

/// Opens all log files anew. May wait.
fn reopen_all(logs: &OpenLogs, log: &Log) {
    for (path, e) in logs.reopen_all(None) {
        log!(log, Emerg, None, "open() \"{}\" failed {}", path.display(), Cause(&e));
    }
    crate::boot::redirect_stderr(log);
}
