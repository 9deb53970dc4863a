//! The fixture of the laws: a loop with a listener that starts a task for each connection.

use std::future::Future;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{
    Arm, BackendKind, Driver, Handle, ListenerKey, Loop, Options, StealGroup, Stream, Turn,
};

/// The limit after which a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Site {
    pub(crate) event_loop: Loop,
    pub(crate) h: Handle,
    pub(crate) address: SocketAddr,
    pub(crate) listener: ListenerKey,
}

impl Site {
    pub(crate) fn new(backend: BackendKind) -> Site {
        Site::made(&Options { backend, ..Options::default() })
    }

    /// A loop of a steal group.
    pub(crate) fn with_group(group: StealGroup) -> Site {
        Site::made(&Options { steal_group: Some(group), ..Options::default() })
    }

    pub(crate) fn made(options: &Options) -> Site {
        let event_loop = Loop::new(options).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let h = event_loop.handle();
        let listener = h.add_listener(Arc::new(socket.into()));
        h.arm(listener, Arm::Exclusive).unwrap();
        Site { event_loop, h, address, listener }
    }

    /// A client's end: an ordinary blocking socket.
    pub(crate) fn client(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// Runs the loop until it is stopped. Each connection becomes a task of `serve`.
    pub(crate) fn serve<F, S>(&mut self, serve: S)
    where
        F: Future<Output = ()> + 'static,
        S: Fn(Handle, Stream) -> F,
    {
        let turn = |_: &Turn| {};
        self.drive(&mut Each { serve, turn, began: Instant::now() });
    }

    /// As [`Site::serve`], with a callback in each turn.
    pub(crate) fn serve_turns<F, S>(&mut self, serve: S, turn: impl Fn(&Turn))
    where
        F: Future<Output = ()> + 'static,
        S: Fn(Handle, Stream) -> F,
    {
        self.drive(&mut Each { serve, turn, began: Instant::now() });
    }

    /// Runs the loop until it is stopped, for tests without connections.
    pub(crate) fn run(&mut self) {
        self.serve(|_, _| async {});
    }

    pub(crate) fn drive(&mut self, driver: &mut dyn Driver) {
        self.event_loop.run(driver).unwrap();
    }
}

pub(crate) struct Each<S, T> {
    pub(crate) serve: S,
    pub(crate) turn: T,
    pub(crate) began: Instant,
}

impl<F, S, T> Driver for Each<S, T>
where
    F: Future<Output = ()> + 'static,
    S: Fn(Handle, Stream) -> F,
    T: Fn(&Turn),
{
    fn before_wait(&mut self, _: &Handle, now: Instant) -> Option<Duration> {
        assert!(now.saturating_duration_since(self.began) < PATIENCE, "the loop was never stopped");
        Some(Duration::from_secs(1))
    }

    fn acceptable(&mut self, h: &Handle, listener: ListenerKey) {
        while let Some((fd, _)) = h.accept(listener).unwrap() {
            let stream = h.stream(fd).unwrap();
            h.spawn((self.serve)(h.clone(), stream));
        }
    }

    fn end_of_turn(&mut self, _: &Handle, turn: &Turn) {
        (self.turn)(turn);
    }
}

/// A shared list of events.
pub(crate) type Record<T> = Rc<std::cell::RefCell<Vec<T>>>;

pub(crate) fn record<T>() -> Record<T> {
    Rc::default()
}
