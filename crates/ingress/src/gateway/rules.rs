//! The rules of HTTPRoutes and GRPCRoutes: their matches, and the named locations of their
//! requests.

use weir_conf::Directive;

use super::backends::{Backend, BackendProtocol, Block, Use};
use super::durations::milliseconds;
use super::entries::{self, Entry, Path};
use super::filters::{self, Actions, Origin};
use super::grants::{Referrer, Refused};
use super::listeners::{Listener, Served};
use super::objects::{
    BackendRef, Filter, Fraction, HttpRule, Mirror, Retry, SessionPersistence, Timeouts,
};
use super::policies::Policies;
use super::routes::{Route, Spec};
use crate::annotations::values;
use crate::report::{ObjectId, Severity};
use crate::translate::{Work, counted, digest, headers, line, subrequest_name};

/// A rule with its backends.
pub(super) struct Rule<'a> {
    pub(super) route: usize,
    /// The prefix of the names of its locations.
    name: String,
    pub(super) id: ObjectId,
    pub(super) entries: Vec<Entry>,
    /// The filters of all its requests. With an error, they are answered with 500.
    actions: Result<Actions<'a>, String>,
    shares: Vec<Share<'a>>,
    mirrors: Vec<MirrorTarget<'a>>,
    timeouts: Option<&'a Timeouts>,
    retry: Option<&'a Retry>,
    session: Option<&'a SessionPersistence>,
}

/// A backend with its share of the requests.
struct Share<'a> {
    weight: u32,
    backend: Result<Backend, Refused>,
    actions: Result<Actions<'a>, String>,
}

/// A backend that gets mirrored requests.
struct MirrorTarget<'a> {
    mirror: &'a Mirror,
    backend: Result<Backend, Refused>,
}

/// A rule before its references are resolved.
struct Draft<'a> {
    entries: Vec<Result<Entry, String>>,
    filters: &'a [Filter],
    backends: &'a [BackendRef],
    http: Option<&'a HttpRule>,
    session: Option<&'a SessionPersistence>,
}

/// Reads the rules of an HTTPRoute or GRPCRoute. `number` is the index of its first rule.
pub(super) fn read<'a>(
    work: &mut Work<'_>,
    policies: &mut Policies,
    gateways: &[ObjectId],
    (at, route): (usize, &mut Route<'a>),
    number: usize,
) -> Vec<Rule<'a>> {
    let drafts = drafts(route.spec, number);
    let all = drafts.len();
    let mut lost = 0;
    let mut rules = Vec::new();
    let mut reading = Reading { work, policies, gateways };
    for (n, draft) in drafts.into_iter().enumerate() {
        let (rule, whole) = reading.rule((at, &mut *route), n, draft);
        lost += usize::from(!whole);
        rules.push(rule);
    }
    route.faults.none_left = all > 0 && lost == all;
    rules
}

/// The context in which rules are read.
struct Reading<'r, 'w> {
    work: &'r mut Work<'w>,
    policies: &'r mut Policies,
    gateways: &'r [ObjectId],
}

impl Reading<'_, '_> {
    /// Reads a rule. Returns whether all of it can be served, apart from its backends.
    fn rule<'a>(
        &mut self,
        (at, route): (usize, &mut Route<'a>),
        n: usize,
        draft: Draft<'a>,
    ) -> (Rule<'a>, bool) {
        let kind = route.id.kind;
        let from = Referrer { kind, namespace: &route.id.namespace };
        let mut actions = Actions::default();
        let read = actions.read(self.work, draft.filters);
        let shares = self.shares(from, &actions, draft.backends);
        let mirrors = self.mirrors(from, &actions, &shares);
        let faults = &mut route.faults;
        let behind = shares.iter().map(|share| &share.backend);
        let behind = behind.chain(mirrors.iter().map(|copy| &copy.backend));
        for refused in behind.filter_map(|backend| backend.as_ref().err()) {
            faults.unresolved.get_or_insert_with(|| refused.clone());
        }
        let own = shares.iter().find_map(|share| share.actions.as_ref().err());
        let broken = own.or(read.as_ref().err());
        let mut whole = broken.is_none();
        faults.dropped.extend(broken.cloned());
        let mut list = Vec::new();
        for entry in draft.entries {
            match entry {
                Ok(entry) => list.push(entry),
                Err(why) => faults.dropped.push(why),
            }
        }
        whole &= !list.is_empty();
        if draft.session.is_some_and(|session| !is_by_cookie(session)) {
            faults.ignored.push(format!("sessionPersistence of rule {n}: {BY_COOKIE_ALONE}"));
        }
        let codes = draft.http.and_then(|rule| rule.retry.as_ref()).into_iter();
        let codes = codes.flat_map(|retry| &retry.codes).filter(|code| !RETRIED.contains(code));
        faults.ignored.extend(codes.map(|code| format!("retry of {code} of rule {n}")));
        let prefix = if kind == "GRPCRoute" { "grpc" } else { "http" };
        let rule = Rule {
            route: at,
            name: format!("{prefix}_{}_{}_{n}", route.id.namespace, route.id.name),
            id: route.id.clone(),
            entries: list,
            actions: read.map(|()| actions),
            shares,
            mirrors,
            timeouts: draft.http.and_then(|rule| rule.timeouts.as_ref()),
            retry: draft.http.and_then(|rule| rule.retry.as_ref()),
            session: draft.session,
        };
        (rule, whole)
    }

    fn shares<'a>(
        &mut self,
        from: Referrer<'_>,
        actions: &Actions<'a>,
        backends: &'a [BackendRef],
    ) -> Vec<Share<'a>> {
        let mut list = Vec::new();
        for backend in backends {
            let found = self.work.backend(self.policies, self.gateways, from, &backend.target());
            let mut own = actions.clone();
            let own = own.read(self.work, &backend.filters).map(|()| own);
            let weight = backend.weight.unwrap_or(1);
            list.push(Share { weight, backend: found, actions: own });
        }
        list
    }

    /// The mirrors of a rule and of its backends, each once.
    fn mirrors<'a>(
        &mut self,
        from: Referrer<'_>,
        actions: &Actions<'a>,
        shares: &[Share<'a>],
    ) -> Vec<MirrorTarget<'a>> {
        let mut wanted: Vec<&'a Mirror> = actions.mirrors.clone();
        let own = shares.iter().filter_map(|share| share.actions.as_ref().ok());
        for mirror in own.flat_map(|actions| &actions.mirrors) {
            if !wanted.iter().any(|known| std::ptr::eq(*known, *mirror)) {
                wanted.push(mirror);
            }
        }
        let mut backend = |mirror: &Mirror| {
            self.work.backend(self.policies, self.gateways, from, &mirror.backend_ref)
        };
        wanted.into_iter().map(|mirror| MirrorTarget { mirror, backend: backend(mirror) }).collect()
    }
}

fn drafts<'a>(spec: Spec<'a>, number: usize) -> Vec<Draft<'a>> {
    match spec {
        Spec::Http(spec) => spec
            .rules
            .iter()
            .enumerate()
            .map(|(n, rule)| {
                let cors = rule.filters.iter().any(|filter| filter.r#type == "CORS");
                let any = super::objects::HttpMatch::default();
                let matches = if rule.matches.is_empty() {
                    std::slice::from_ref(&any)
                } else {
                    &rule.matches
                };
                Draft {
                    entries: matches
                        .iter()
                        .map(|one| entries::http(one, number + n, cors))
                        .collect(),
                    filters: &rule.filters,
                    backends: &rule.backend_refs,
                    http: Some(rule),
                    session: rule.session_persistence.as_ref(),
                }
            })
            .collect(),
        Spec::Grpc(spec) => spec
            .rules
            .iter()
            .enumerate()
            .map(|(n, rule)| {
                let any = super::objects::GrpcMatch::default();
                let matches = if rule.matches.is_empty() {
                    std::slice::from_ref(&any)
                } else {
                    &rule.matches
                };
                Draft {
                    entries: matches.iter().map(|one| entries::grpc(one, number + n)).collect(),
                    filters: &rule.filters,
                    backends: &rule.backend_refs,
                    http: None,
                    session: rule.session_persistence.as_ref(),
                }
            })
            .collect(),
        Spec::Stream(_) => Vec::new(),
    }
}

/// The context of a rule's locations.
pub(super) struct Site<'s> {
    pub(super) served: &'s Served<'s>,
    pub(super) listener: &'s Listener<'s>,
    pub(super) tls: bool,
}

impl Rule<'_> {
    fn is_grpc(&self) -> bool {
        self.id.kind == "GRPCRoute"
    }

    /// The prefixes of the rule's matches, longest first. The replacement of a prefix depends on
    /// them.
    fn prefixes(&self) -> Vec<&str> {
        let mut list: Vec<&str> = self
            .entries
            .iter()
            .filter_map(|entry| match &entry.path {
                Path::Prefix(path) => Some(path.as_str()),
                Path::Exact(_) | Path::Pattern(_) => None,
            })
            .collect();
        list.sort_unstable_by_key(|path| std::cmp::Reverse(path.len()));
        list.dedup();
        list
    }

    /// The context of a redirect.
    fn origin(&self, site: &Site<'_>) -> Origin<'_> {
        let (tls, port) = (site.tls, site.listener.port);
        Origin { route: &self.id, tls, port, prefixes: self.prefixes() }
    }

    /// The words of `route` for the rule's requests, and the named location of its preflights.
    pub(super) fn targets(&self) -> (Vec<String>, Option<String>) {
        let cors = self.actions.as_ref().is_ok_and(|actions| actions.cors.is_some());
        let preflight = cors.then(|| format!("@{}_cors", self.name));
        let redirects = self.actions.as_ref().is_ok_and(|actions| actions.redirect.is_some());
        let total: u64 = self.shares.iter().map(|share| u64::from(share.weight)).sum();
        if self.actions.is_err() || redirects || total == 0 {
            return (vec![format!("@{}", self.name)], preflight);
        }
        let shares = self.shares.iter().enumerate().filter(|(_, share)| share.weight > 0);
        let names = shares.map(|(n, share)| format!("@{}_{n}={}", self.name, share.weight));
        (names.collect(), preflight)
    }

    /// The named locations of the rule, and those of its mirrors.
    pub(super) fn locations(&self, work: &mut Work<'_>, site: &Site<'_>) -> Vec<Directive> {
        let mut list = Vec::new();
        let (targets, preflight) = self.targets();
        if let (Some(name), Ok(Actions { cors: Some(cors), .. })) = (&preflight, &self.actions) {
            list.push(line("location", [name.as_str()]).with_block(filters::preflight(work, cors)));
        }
        if targets.len() == 1 && targets[0] == format!("@{}", self.name) {
            let mut inside = self.without_servers(work, site);
            inside.push(counted(&self.id));
            list.push(line("location", [targets[0].as_str()]).with_block(inside));
            return list;
        }
        for (n, copy) in self.mirrors.iter().enumerate() {
            list.extend(self.copy(work, site, n, copy));
        }
        for (n, share) in self.shares.iter().enumerate().filter(|(_, share)| share.weight > 0) {
            let mut inside = self.share(work, site, share);
            inside.push(counted(&self.id));
            list.push(
                line("location", [format!("@{}_{n}", self.name).as_str()]).with_block(inside),
            );
        }
        list
    }

    /// The directives of a rule that answers without a backend.
    fn without_servers(&self, work: &mut Work<'_>, site: &Site<'_>) -> Vec<Directive> {
        let Ok(actions) = &self.actions else { return vec![line("return", ["500"])] };
        let mut list = actions.answer_lines(work, "");
        match actions.redirect {
            Some(redirect) => {
                let at = self.origin(site);
                list.extend(filters::redirect(work, redirect, &at));
            }
            None => list.push(line("return", [if self.is_grpc() { "503" } else { "500" }])),
        }
        list
    }

    fn mirror_name(&self, n: usize) -> String {
        subrequest_name("mirror", &digest(format!("{}_{n}", self.name).as_bytes()))
    }

    /// The locations of a mirror, which gets a share of the requests.
    fn copy(
        &self,
        work: &mut Work<'_>,
        site: &Site<'_>,
        n: usize,
        copy: &MirrorTarget<'_>,
    ) -> Vec<Directive> {
        let Ok(backend) = &copy.backend else { return Vec::new() };
        let Some(group) = work.group_of(backend, Block::Http, ("", Vec::new()), Use::default())
        else {
            return Vec::new();
        };
        let Some(mut inside) = self.protocol_lines(site, backend, "proxy") else {
            return Vec::new();
        };
        let scheme = if backend.tls.is_some() { "https" } else { "http" };
        inside.extend(headers("proxy_set_header"));
        // Servers of gRPC may refuse calls without this header.
        inside.extend(self.is_grpc().then(|| line("proxy_set_header", ["TE", "trailers"])));
        inside.push(line("proxy_pass", [format!("{scheme}://{group}$request_uri").as_str()]));
        let path = self.mirror_name(n);
        let (some, all) = match (&copy.mirror.fraction, copy.mirror.percent) {
            (Some(Fraction { numerator, denominator }), _) => {
                (*numerator, denominator.unwrap_or(100))
            }
            (None, Some(percent)) => (percent, 100),
            (None, None) => (1, 1),
        };
        inside.insert(0, line("internal", []));
        if some >= all {
            return vec![line("location", ["=", &path]).with_block(inside)];
        }
        let (yes, no) = (format!("@{}_copy_{n}", self.name), format!("@{}_no_copy", self.name));
        let choice =
            line("route", [format!("{yes}={some}").as_str(), &format!("{no}={}", all - some)]);
        let mut list = vec![
            line("location", ["=", &path]).with_block(vec![line("internal", []), choice]),
            line("location", [yes.as_str()]).with_block(inside),
        ];
        if n == 0
            || self
                .mirrors
                .iter()
                .take(n)
                .all(|one| one.mirror.fraction.is_none() && one.mirror.percent.is_none())
        {
            list.push(line("location", [no.as_str()]).with_block(vec![line("return", ["204"])]));
        }
        list
    }

    /// The directives of the protocol and of TLS to a backend, for `proxy_pass` or `grpc_pass` as
    /// `set` says. `None` if it cannot be verified.
    fn protocol_lines(
        &self,
        site: &Site<'_>,
        backend: &Backend,
        set: &str,
    ) -> Option<Vec<Directive>> {
        let mut list = Vec::new();
        if set == "proxy" && (self.is_grpc() || backend.protocol == BackendProtocol::Http2) {
            list.push(line("proxy_http_version", ["2"]));
        }
        let Some(tls) = &backend.tls else { return Some(list) };
        let tls = tls.as_ref()?;
        let client = match &site.served.client {
            None => None,
            Some(Ok((file, _))) => Some(file),
            Some(Err(_)) => return None,
        };
        list.extend(tls.lines(&format!("{set}_ssl_")));
        if let Some(file) = client {
            for name in ["certificate", "certificate_key"] {
                list.push(line(&format!("{set}_ssl_{name}"), [file.as_str()]));
            }
        }
        Some(list)
    }

    /// The location of a backend.
    fn share(&self, work: &mut Work<'_>, site: &Site<'_>, share: &Share<'_>) -> Vec<Directive> {
        let grpc = self.is_grpc();
        // gRPC clients read 503 as UNAVAILABLE, which the specification asks for.
        let refuse = || vec![line("return", [if grpc { "503" } else { "500" }])];
        let (Ok(backend), Ok(actions)) = (&share.backend, &share.actions) else { return refuse() };
        let set = if grpc { "grpc" } else { "proxy" };
        let mut list = Vec::new();
        for (n, copy) in self.mirrors.iter().enumerate() {
            let wanted = actions.mirrors.iter().any(|mirror| std::ptr::eq(*mirror, copy.mirror));
            if wanted
                && copy.backend.as_ref().is_ok_and(|backend| {
                    self.protocol_lines(site, backend, "proxy").is_some() && backend.has_servers()
                })
            {
                list.push(line("mirror", [self.mirror_name(n).as_str()]));
            }
        }
        list.extend(actions.answer_lines(work, &format!("{set}_hide_header")));
        if let Some(redirect) = actions.redirect {
            let at = self.origin(site);
            list.extend(filters::redirect(work, redirect, &at));
            return list;
        }
        let Some(protocol_lines) = self.protocol_lines(site, backend, set) else { return refuse() };
        list.extend(protocol_lines);
        let mut extra = actions.headers.clone();
        if let Some(rewrite) = actions.rewrite {
            if let Some(host) = &rewrite.hostname {
                extra.retain(|(name, _)| !name.eq_ignore_ascii_case("Host"));
                extra.push(("Host".to_owned(), host.clone()));
            }
            let change = rewrite.path.iter();
            list.extend(change.flat_map(|change| filters::rewrite(change, &self.prefixes())));
        }
        if !extra.is_empty() {
            let name = format!("{set}_set_header");
            let own = |d: &Directive| {
                extra
                    .iter()
                    .any(|(n, _)| d.arg(0).is_some_and(|w| w.lossy().eq_ignore_ascii_case(n)))
            };
            list.extend(headers(&name).into_iter().filter(|d| !own(d)));
            list.extend(extra.iter().map(|(header, value)| line(&name, [header.as_str(), value])));
        }
        list.extend(self.times());
        list.extend(self.attempts(work));
        let times = self.retry.map_or(1, |retry| retry.attempts.unwrap_or(1).min(20) as usize + 1);
        let sticky = self.sticky(work);
        let suffix = if sticky.is_empty() { String::new() } else { digest(self.name.as_bytes()) };
        let limited = self.timeouts.is_some();
        match work.group_of(backend, Block::Http, (&suffix, sticky), Use { times, limited }) {
            None => list.push(line("return", ["503"])),
            Some(group) => {
                let scheme = match (grpc, backend.tls.is_some()) {
                    (false, false) => "http",
                    (false, true) => "https",
                    (true, false) => "grpc",
                    (true, true) => "grpcs",
                };
                list.push(line(&format!("{set}_pass"), [format!("{scheme}://{group}").as_str()]));
            }
        }
        list
    }

    fn times(&self) -> Vec<Directive> {
        let Some(times) = self.timeouts else { return Vec::new() };
        let read = |text: &Option<String>| text.as_deref().and_then(milliseconds);
        let (request, attempt) = (read(&times.request), read(&times.backend_request));
        let Some(most) = attempt.or(request) else { return Vec::new() };
        // Zero means no limit.
        let word = |ms: u64| if ms == 0 { "1d".to_owned() } else { format!("{ms}ms") };
        let mut list = Vec::new();
        if self.retry.is_none() {
            list.push(line("proxy_next_upstream", ["error"]));
        }
        list.extend([
            line("proxy_read_timeout", [word(most).as_str()]),
            line("proxy_send_timeout", [word(most).as_str()]),
        ]);
        if (1..5_000).contains(&most) {
            list.push(line("proxy_connect_timeout", [word(most).as_str()]));
        }
        if let Some(ms) = request.filter(|ms| *ms > 0) {
            list.push(line("proxy_next_upstream_timeout", [word(ms).as_str()]));
            list.push(line("proxy_answer_timeout", [word(ms).as_str()]));
        }
        list
    }

    fn attempts(&self, work: &mut Work<'_>) -> Vec<Directive> {
        let Some(retry) = self.retry else { return Vec::new() };
        let mut words = vec!["error".to_owned(), "timeout".to_owned()];
        for code in &retry.codes {
            match RETRIED.contains(code) {
                true => words.push(format!("http_{code}")),
                false => {
                    let about = format!("retry of {code}");
                    work.say(
                        &self.id,
                        Severity::Warning,
                        "RetryLeftOut",
                        &about,
                        "requests with this status are not repeated",
                    );
                }
            }
        }
        words.dedup();
        let attempts = retry.attempts.unwrap_or(1).min(20) + 1;
        let mut list = vec![
            line("proxy_next_upstream", words.iter().map(String::as_str)),
            line("proxy_next_upstream_tries", [attempts.to_string().as_str()]),
        ];
        if let Some(ms) = retry.backoff.as_deref().and_then(milliseconds).filter(|ms| *ms > 0) {
            list.push(line("proxy_next_upstream_delay", [format!("{ms}ms").as_str()]));
        }
        list
    }

    /// `sticky` for the group. The group is then the rule's own.
    fn sticky(&self, work: &mut Work<'_>) -> Vec<Directive> {
        let Some(session) = self.session else { return Vec::new() };
        if !is_by_cookie(session) {
            work.say(
                &self.id,
                Severity::Warning,
                "SessionLeftOut",
                "sessionPersistence",
                BY_COOKIE_ALONE,
            );
            return Vec::new();
        }
        let cookie = session.cookie.as_ref().or(session.cookie_config.as_ref());
        let asked =
            cookie.and_then(|cookie| cookie.name.as_ref()).or(session.session_name.as_ref());
        let name = asked.filter(|name| values::of(name, COOKIE_NAME) && !name.is_empty()).cloned();
        let permanent =
            cookie.and_then(|cookie| cookie.lifetime_type.as_deref()) == Some("Permanent");
        let several = self.shares.iter().filter(|share| share.weight > 0).count() > 1;
        for (is_so, text) in [
            (several, "a client stays with a server, not with one of several backends"),
            (asked.is_some() && name.is_none(), "the name is none of a cookie: it has another"),
            (
                session.absolute_timeout.is_some() && !permanent,
                "absoluteTimeout counts for cookies of the lifetime Permanent alone",
            ),
        ] {
            if is_so {
                work.say(&self.id, Severity::Warning, "SessionInPart", "sessionPersistence", text);
            }
        }
        let name = name.unwrap_or_else(|| format!("weir-{}", digest(self.name.as_bytes())));
        let path = cookie.and_then(|cookie| cookie.path.as_deref());
        let path = path.filter(|path| path.starts_with('/') && values::of(path, "/-_.~%"));
        let expires =
            session.absolute_timeout.as_deref().and_then(milliseconds).filter(|_| permanent);
        let mut words = vec!["cookie".to_owned(), name];
        words.extend(expires.map(|ms| format!("expires={}s", ms / 1000)));
        words.extend([format!("path={}", path.unwrap_or("/")), "httponly".to_owned()]);
        vec![line("sticky", words.iter().map(String::as_str))]
    }
}

/// The statuses after which a request may be repeated.
const RETRIED: [u16; 7] = [403, 404, 429, 500, 502, 503, 504];

const BY_COOKIE_ALONE: &str = "only cookies are supported";

fn is_by_cookie(session: &SessionPersistence) -> bool {
    session.r#type.as_deref().unwrap_or("Cookie") == "Cookie"
}

/// The characters of a cookie's name beside letters and digits, without the dollar. RFC 6265.
const COOKIE_NAME: &str = "!#%&'*+-.^_`|~";
