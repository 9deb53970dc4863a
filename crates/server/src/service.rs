//! The sites of a configuration: HTTP, sessions (`stream`) and mail. Each listening socket belongs
//! to one of them; other code here need not know to which.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use crate::listen::Post;
use crate::status::StatusInputs;
use weir_acme::{CertificateOrder, Issuer, Standing};
use weir_engine::Handle;
use weir_http::QuicHosts;
use weir_metrics::subjects::{Cells, SubjectKind};
use weir_metrics::{Registry, Tally};
use weir_ssl::{CertificateFacts, HandedConnection};
use weir_stream::Leaving;
use weir_sys::lent::Lent;
use weir_upstream::Group;
use weir_upstream::config::servers_file::ServersFile;
use weir_values::doing::Keeper;
use weir_values::listen::Listen;
use weir_values::log::Writers;
use weir_values::{Address, ChangeAnswer, ChangeRequest, Command, Identity, Retire};
use weir_zone::Zones;

/// The sites of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    /// The `http` block.
    pub http: Option<Arc<weir_http::Site>>,
    /// The `stream` block.
    pub stream: Option<Arc<weir_stream::Site>>,
    /// The `mail` block.
    pub mail: Option<Arc<weir_mail::Site>>,
}

impl Sites {
    /// The sockets to open: those of HTTP, then those of sessions, then those of mail.
    pub fn listens(&self) -> Vec<Listen> {
        let http = self.http.iter().flat_map(|site| site.listens());
        let sessions = self.stream.iter().flat_map(|site| site.listens());
        let mail = self.mail.iter().flat_map(|site| site.listens());
        http.chain(sessions).chain(mail).cloned().collect()
    }

    /// The groups of upstream servers, and the kind under which they are counted.
    pub fn groups(&self) -> Vec<(SubjectKind, Vec<Arc<Group>>)> {
        let http = self.http.iter().map(|site| (SubjectKind::Peer, weir_http::groups(site)));
        let stream = self.stream.iter().map(|site| (SubjectKind::StreamPeer, site.groups()));
        http.chain(stream).collect()
    }

    /// The groups whose servers are read from files.
    pub fn in_files(&self) -> Vec<(Arc<Group>, Arc<ServersFile>)> {
        let http = self.http.iter().flat_map(|site| weir_http::groups_in_files(site));
        http.chain(self.stream.iter().flat_map(|site| site.groups_in_files())).collect()
    }

    /// The certificates that the sites present to peers.
    pub fn certificates(&self) -> impl Iterator<Item = &CertificateFacts> {
        let http = self.http.iter().flat_map(|site| &site.certificates);
        let sessions = self.stream.iter().flat_map(|site| &site.certificates);
        http.chain(sessions).chain(self.mail.iter().flat_map(|site| &site.certificates))
    }

    /// The certificates that ACME servers are asked for, with their states.
    pub fn orders(&self) -> impl Iterator<Item = (&Issuer, &CertificateOrder, Standing)> {
        let issuers = self.issuers().iter().map(|issuer| &**issuer);
        issuers.flat_map(|issuer| {
            let orders = issuer.orders.iter().zip(issuer.all_standings());
            orders.map(move |(order, standing)| (issuer, &**order, standing))
        })
    }

    /// Whether an `error_log` of a block is stderr.
    pub fn logs_to_stderr(&self) -> bool {
        self.http.iter().any(|site| site.logs_to_stderr())
            || self.stream.iter().any(|site| site.logs_to_stderr())
            || self.mail.iter().any(|site| site.logs_to_stderr())
    }

    /// Whether workers may send operators' commands to the master.
    pub fn take_commands(&self) -> bool {
        self.http.iter().any(|site| site.takes_commands)
    }

    /// Whether workers may request changes from the master.
    pub fn take_changes(&self) -> bool {
        self.http.iter().any(|site| site.takes_changes)
    }

    /// Whether there is a script that runs before anything is served, and may fail.
    pub fn has_init_script(&self) -> bool {
        self.http.iter().any(|site| site.has_init_script)
    }

    /// The directories that workers write to and that must be made first: those for temporary
    /// files, and those of ACME issuers.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let temporary = self.http.iter().flat_map(|site| site.temp_paths());
        let issuers = self.issuers().iter();
        temporary
            .map(|path| path.directory.as_path())
            .chain(issuers.map(|issuer| issuer.directory.as_path()))
    }

    /// The ACME issuers.
    pub fn issuers(&self) -> &[Arc<Issuer>] {
        self.http.as_ref().map_or(&[], |site| weir_http::issuers(site))
    }

    /// The sites, for loops to serve.
    pub fn lend(&self) -> Served {
        let http = self.http.clone().map(Lent::new);
        Served { http, stream: self.stream.clone(), mail: self.mail.clone() }
    }
}

/// The sites that a process serves.
#[derive(Clone, Default)]
pub struct Served {
    http: Option<Lent<weir_http::Site>>,
    stream: Option<Arc<weir_stream::Site>>,
    mail: Option<Arc<weir_mail::Site>>,
}

impl Served {
    fn http(&self) -> Option<&weir_http::Site> {
        self.http.as_ref().map(|site| &**site.shared())
    }
}

/// The sites as one loop serves them.
pub struct Service {
    /// The loop's handle.
    pub handle: Handle,
    /// The loop's counters.
    pub metrics: Rc<Tally>,
    /// The state of the newest HTTP site.
    http: RefCell<Option<Rc<weir_http::LoopState>>>,
    status: OnceCell<Rc<StatusInputs>>,
    passes_on: OnceCell<(weir_http::Tell, weir_http::AskChange)>,
    stream: Option<Rc<weir_stream::LoopState>>,
    mail: Option<Rc<weir_mail::LoopState>>,
    /// The number of sockets of HTTP.
    of_http: usize,
    /// The number of sockets of HTTP and of sessions.
    before_mail: usize,
    /// The state of HTTP's QUIC sockets.
    quic: OnceCell<Rc<QuicHosts>>,
}

impl Service {
    /// None if there is nothing to serve.
    pub fn new(
        handle: &Handle,
        served: Served,
        identity: Identity,
        metrics: Tally,
        registry: Registry,
    ) -> Option<Rc<Service>> {
        if served.http.is_none() && served.stream.is_none() && served.mail.is_none() {
            return None;
        }
        let cells = Rc::new(Cells::new(registry, metrics.index()));
        let metrics = Rc::new(metrics);
        // The sites of sessions and mail are borrowed for the rest of the process's life. Running
        // workers only take changes of `http`.
        let stream_site = served.stream.clone().map(|site| &**Box::leak(Box::new(site)));
        let mail_site = served.mail.clone().map(|site| &**Box::leak(Box::new(site)));
        let usual = served.http().map(|site| site.stall_defaults());
        let usual = usual.or_else(|| stream_site.map(|site| site.stall_defaults()));
        if let Some(usual) = usual.or_else(|| mail_site.map(|site| site.stall_defaults())) {
            handle.keep_time(Keeper::new(metrics.clone(), usual));
        }
        let of_http = served.http().map_or(0, |site| site.listens().len());
        let before_mail = of_http + stream_site.map_or(0, |site| site.listens().len());
        let http = served.http.map(|site| {
            weir_http::LoopState::new(
                handle.clone(),
                site,
                identity,
                metrics.clone(),
                cells.clone(),
            )
        });
        let stream = stream_site.map(|site| {
            weir_stream::LoopState::new(handle.clone(), site, identity, metrics.clone(), cells)
        });
        let mail = mail_site
            .map(|site| weir_mail::LoopState::new(handle.clone(), site, identity, metrics.clone()));
        if let (Some(http), Some(stream)) = (&http, &stream)
            && let Some(scripts) = weir_http::session_scripts(http)
        {
            let _ = stream.scripts.set(scripts);
        }
        if let (Some(http), Some(site)) = (&http, stream_site) {
            let _ = http.status_zones.set(&site.status_zones);
            let _ = http.stream_groups.set(site.groups());
        }
        let service = Rc::new(Service {
            handle: handle.clone(),
            metrics,
            http: RefCell::new(http),
            status: OnceCell::new(),
            passes_on: OnceCell::new(),
            stream,
            mail,
            of_http,
            before_mail,
            quic: OnceCell::new(),
        });
        if let Some(stream) = &service.stream {
            let told = Rc::downgrade(&service);
            stream.set_listener_lookup(Rc::new(move |to| {
                let service = told.upgrade()?;
                let number = service.number_of(to)?;
                Some(Box::new(move |handed| service.take_over(handed, number)))
            }));
        }
        Some(service)
    }

    /// Serves requests that begin from now on by other sites, which differ only in what is served
    /// over HTTP and listen on the same addresses.
    pub fn take(&self, served: Served, sites: &Sites, zones: &Zones) {
        let (Some(old), Some(site)) = (self.http(), served.http) else { return };
        let next = old.succeed(site);
        if let Some(stream) = &self.stream {
            let _ = next.status_zones.set(&stream.site.status_zones);
            let _ = next.stream_groups.set(stream.site.groups());
        }
        if let Some(status) = self.status.get() {
            status.now(sites, zones);
            self.show_on(&next, status);
        }
        if let Some((tell, ask)) = self.passes_on.get() {
            let _ = next.commands.set(Rc::clone(tell));
            let _ = next.asks_change.set(Rc::clone(ask));
        }
        self.handle.keep_time(Keeper::new(self.metrics.clone(), next.site.stall_defaults()));
        self.http.replace(Some(next));
    }

    fn http(&self) -> Option<Rc<weir_http::LoopState>> {
        self.http.borrow().clone()
    }

    fn show_on(&self, http: &weir_http::LoopState, status: &Rc<StatusInputs>) {
        let (stream, status) = (self.stream.clone(), Rc::clone(status));
        let _ = http.shown.set(Box::new(move |all, each, page| {
            status.show(all, page);
            stream.iter().for_each(|stream| stream.show(all, each, page));
        }));
    }

    /// Only runs the scripts that run before anything is served. Returns the error as it is logged.
    pub fn try_scripts(
        handle: &Handle,
        served: Served,
        identity: Identity,
        metrics: Tally,
        registry: Registry,
    ) -> Result<(), String> {
        let Some(site) = served.http else { return Ok(()) };
        let cells = Rc::new(Cells::new(registry, metrics.index()));
        weir_http::LoopState::try_out(handle.clone(), site, identity, Rc::new(metrics), cells)
    }

    /// Makes status pages show these values, and sets the owner of the loop's tally.
    pub fn shows(&self, status: StatusInputs) {
        self.metrics.set_owner(status.owner);
        let status = Rc::new(status);
        if let Some(http) = self.http() {
            self.show_on(&http, &status);
        }
        let _ = self.status.set(status);
    }

    /// Sets where operators' commands (`tell`) and requests for other configurations (`ask`) go.
    pub fn passes_on(
        &self,
        tell: impl Fn(Command) -> io::Result<()> + 'static,
        ask: impl Fn(&ChangeRequest) -> ChangeAnswer + 'static,
    ) {
        let (tell, ask): (weir_http::Tell, weir_http::AskChange) = (Rc::new(tell), Rc::new(ask));
        if let Some(http) = self.http() {
            let _ = http.commands.set(Rc::clone(&tell));
            let _ = http.asks_change.set(Rc::clone(&ask));
        }
        let _ = self.passes_on.set((tell, ask));
    }

    /// Makes requests that wait for an upstream server try again.
    pub fn look(&self) {
        self.http().iter().for_each(|http| http.look());
    }

    /// Serves an accepted, non-blocking socket of the listening socket with this number.
    pub fn accepted(&self, fd: OwnedFd, peer: Address, number: usize) {
        match (self.http(), &self.stream) {
            (Some(http), _) if number < self.of_http => http.accepted(fd, peer, number),
            (_, Some(stream)) if number < self.before_mail => {
                stream.accepted(fd, peer, number - self.of_http);
            }
            _ => {
                if let Some(mail) = &self.mail {
                    mail.accepted(fd, peer, number - self.before_mail);
                }
            }
        }
    }

    /// How many HTTP clients of this listening socket sent bytes soon after they were accepted.
    pub fn spoke_soon(&self, number: usize) -> u64 {
        self.http().map_or(0, |http| http.spoke_soon(number))
    }

    /// The numbers of the listening sockets from which this loop declines to accept.
    pub fn declined(&self) -> Vec<usize> {
        self.http().map(|http| weir_http::declined(&http)).unwrap_or_default()
    }

    /// Whether the listening socket with this number belongs to HTTP.
    pub fn is_http(&self, number: usize) -> bool {
        number < self.of_http
    }

    /// Takes over a connection for the listening socket with this number.
    fn take_over(&self, handed: HandedConnection, number: usize) {
        match (self.http(), &self.stream) {
            (Some(http), _) if number < self.of_http => http.take_over(handed, number),
            (_, Some(stream)) if number < self.before_mail => {
                stream.take_over(handed, number - self.of_http);
            }
            _ => {
                if let Some(mail) = &self.mail {
                    mail.take_over(handed, number - self.before_mail);
                }
            }
        }
    }

    /// Serves QUIC as the loop of this row. `post` passes datagrams of other loops' connections on.
    ///
    /// # Errors
    ///
    /// The loop's end of the socket pair cannot be watched.
    pub fn serves_quic(&self, row: usize, post: &Arc<Post>) -> io::Result<()> {
        if self.http().is_none() || !post.is_used() {
            return Ok(());
        }
        let others: Rc<dyn weir_http::OtherLoops> = Rc::new(OtherLoops(Arc::clone(post)));
        let hosts = Rc::new(QuicHosts::new(post.place(row), others));
        post.receive(&self.handle, row, &hosts)?;
        let _ = self.quic.set(hosts);
        Ok(())
    }

    /// Receives datagrams from the socket with this number, for at most `most` sessions.
    pub fn receives(&self, fd: Arc<OwnedFd>, number: usize, most: usize) {
        if self.is_http(number) {
            return self.quic.get().into_iter().for_each(|quic| quic.receives(&fd, number, most));
        }
        if let Some(stream) = &self.stream {
            stream.receives(fd, number - self.of_http, most);
        }
    }

    /// Accepts new connections from this QUIC socket, which all loops share.
    pub fn shares(&self, fd: &Arc<OwnedFd>, number: usize) {
        self.quic.get().into_iter().for_each(|quic| quic.shares(fd, number));
    }

    /// Accepts a connection from such a socket. False if none waits.
    pub fn take_first(&self, number: usize) -> bool {
        self.quic.get().is_some_and(|quic| quic.take_first(number))
    }

    /// Accepts nothing new from the socket with this number. `left` says that the next
    /// configuration does not use the socket.
    pub fn leaves(&self, number: usize, how: Retire, left: bool) {
        let replaced = how == Retire::Reload && !left;
        if self.is_http(number) {
            let to_others = replaced || how == Retire::Yield;
            return self.quic.get().into_iter().for_each(|quic| quic.leaves(number, to_others));
        }
        if let Some(stream) = &self.stream {
            let how = if replaced { Leaving::ToOthers } else { Leaving::ForGood };
            stream.leaves(number - self.of_http, how);
        }
    }

    /// The number of open client connections.
    #[inline]
    pub fn connections(&self) -> usize {
        let http = self.http.borrow().as_ref().map_or(0, |http| http.connections());
        let sessions = self.stream.as_ref().map_or(0, |stream| stream.connections());
        http + sessions + self.mail.as_ref().map_or(0, |mail| mail.connections())
    }

    /// Whether deferred data, such as spans, was sent. Asked once there is nothing else left to do.
    pub fn is_flushed(&self) -> bool {
        self.http().is_none_or(|http| http.is_flushed())
    }

    /// The number of requests and sessions in process.
    #[inline]
    pub fn inflight(&self) -> usize {
        let http = self.http.borrow().as_ref().map_or(0, |http| http.inflight());
        let sessions = self.stream.as_ref().map_or(0, |stream| stream.inflight());
        http + sessions + self.mail.as_ref().map_or(0, |mail| mail.inflight())
    }

    /// Retires the loop's sites.
    pub fn retire(&self, how: Retire) {
        self.http().iter().for_each(|http| http.retire(how));
        self.stream.iter().for_each(|stream| stream.retire(how));
        self.mail.iter().for_each(|mail| mail.retire(how));
    }

    /// Ends all connections. True if clients are notified, which takes a moment.
    pub fn shut_down(&self) -> bool {
        self.http().is_some_and(|http| http.shut_down())
    }

    /// A turn has ended.
    pub fn end_of_turn(&self) {
        self.http().iter().for_each(|http| http.end_of_turn());
    }

    /// Starts to write buffered lines of access logs. Returns the queues that write them.
    pub fn flush_logs(&self) -> Vec<Writers> {
        let mut queues = self.http().map(|http| http.flush_logs()).unwrap_or_default();
        queues.extend(self.stream.as_ref().map(|stream| stream.flush_logs()));
        queues
    }

    /// Writes all remaining lines of access logs, since the loop has ended.
    pub fn finish_logs(&self) {
        self.http().iter().for_each(|http| http.finish_logs());
        self.stream.iter().for_each(|stream| stream.finish_logs());
    }
}

/// The other loops of the server, for QUIC.
struct OtherLoops(Arc<Post>);

impl weir_http::OtherLoops for OtherLoops {
    fn loops(&self) -> usize {
        self.0.loops()
    }

    fn pass(&self, bound: &Address, to: weir_http::QuicPlace, packet: &weir_http::Packet<'_>) {
        self.0.send(bound, to, packet);
    }

    fn owner(&self, first: u64, place: weir_http::QuicPlace) -> weir_http::QuicPlace {
        self.0.owner(first, place)
    }
}

impl Service {
    /// The number of the stream socket that listens at this address, or at the wildcard of its
    /// port. Datagram sockets do not count, since only connections are passed on.
    fn number_of(&self, to: &Address) -> Option<usize> {
        let http = self.http();
        let of_http = http.iter().flat_map(|http| http.site.listens());
        let of_stream = self.stream.iter().flat_map(|stream| stream.site.listens());
        let of_mail = self.mail.iter().flat_map(|mail| mail.site.listens());
        let mut all = of_http.chain(of_stream).chain(of_mail);
        let exact = |listen: &Listen| !listen.udp && listen.address == *to;
        let wild = |listen: &Listen| {
            let here = &listen.address;
            !listen.udp && here.is_wildcard() && here.port() == to.port()
        };
        all.clone().position(exact).or_else(|| all.position(wild))
    }
}

#[cfg(test)]
mod tests {
    use weir_log::{Level, OpenLogs};

    use super::*;
    use crate::cli::CommandLine;
    use crate::config::Machine;
    use crate::cycle::Origin;
    use crate::embedded::InMemory;
    use crate::paths::Paths;

    /// Each change of `http` lends the worker's sites once more.
    #[test]
    fn what_is_lent_and_not_served_keeps_no_site() {
        let paths = Paths::new(&CommandLine::default(), |_| false);
        let (in_memory, machine) = (InMemory::built_in(), Machine::here());
        let logs = Arc::new(OpenLogs::new());
        let origin = Origin { paths, in_memory, globals: None, logs, machine };
        let text = "events { } stream { server { listen 127.0.0.1:1; return x; } }";
        let tree = weir_conf::read_text_with(Path::new("nginx.conf"), text.as_bytes(), None);
        let sites =
            origin.compile(tree, None, None, &origin.first_log(Level::Emerg)).unwrap().sites;
        let stream = sites.stream.as_ref().unwrap();
        let owners = Arc::strong_count(stream);
        drop(sites.lend());
        assert_eq!(Arc::strong_count(stream), owners);
    }
}
