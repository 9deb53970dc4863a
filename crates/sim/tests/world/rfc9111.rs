//! The rules of a shared cache, written from RFC 9111 and RFC 5861 alone: whether an answer to one
//! request may be reused for another.

use weir_testkit::Dice;

/// The cache fields of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerFields {
    control: &'static str,
    age: Option<u64>,
    vary: &'static str,
    tagged: bool,
}

/// The fields of a request that matter to caches.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestFields {
    control: &'static str,
    authorized: bool,
    kind: &'static str,
    language: &'static str,
}

const ANSWERS: &[&str] = &[
    "",
    "max-age=0",
    "max-age=1",
    "max-age=3",
    "max-age=60",
    "public, max-age=5",
    "public, max-age=60",
    "s-maxage=2, max-age=60",
    "s-maxage=3, stale-while-revalidate=9",
    "max-age=60, must-revalidate",
    "max-age=1, must-revalidate",
    "max-age=2, proxy-revalidate",
    "max-age=2, stale-while-revalidate=4",
    "max-age=1, stale-if-error=30",
    "max-age=1, stale-if-error=3, stale-while-revalidate=1",
    "public, max-age=1, stale-if-error=30",
    "max-age=1, must-revalidate, stale-if-error=30",
    "max-age=60, no-cache",
    "max-age=60, no-store",
    "max-age=60, private",
    "no-store",
];

const REQUESTS: &[&str] = &[
    "no-cache",
    "no-store",
    "max-age=0",
    "max-age=2",
    "max-stale",
    "max-stale=2",
    "min-fresh=2",
    "min-fresh=100",
    "only-if-cached",
    "only-if-cached, max-stale",
    "only-if-cached, max-stale=2",
    "stale-if-error=20",
    "max-stale, max-age=3",
];

/// Tolerance in seconds: both sides round to seconds, and a head takes time.
const SLACK: u64 = 2;

impl AnswerFields {
    /// Draws the fields of a complete answer.
    pub fn draw(salt: u64) -> AnswerFields {
        let mut dice = Dice::salted(salt, "told");
        AnswerFields {
            control: dice.pick(ANSWERS),
            age: dice.pick(&[None, None, Some(0), Some(1), Some(50)]),
            vary: dice.pick(&["", "", "", "X-Kind", "X-Kind, Accept-Language", "*"]),
            tagged: dice.one_in(2),
        }
    }

    /// Draws the fields of a 304. Fields that it lacks stay as they are.
    pub fn draw_unchanged(salt: u64) -> AnswerFields {
        let mut dice = Dice::salted(salt, "unchanged");
        let control = dice.pick(&ANSWERS[1..]);
        let age = dice.pick(&[None, None, Some(0), Some(50)]);
        AnswerFields { control, age, vary: "", tagged: false }
    }

    /// The fields as text. `generation` makes the entity tag unique.
    pub fn fields(&self, generation: u64) -> String {
        let mut fields = String::new();
        let mut add = |name: &str, value: &str| {
            if !value.is_empty() {
                fields.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        add("Cache-Control", self.control);
        add("Age", &self.age.map_or(String::new(), |age| age.to_string()));
        add("Vary", self.vary);
        add("ETag", &if self.tagged { tag(generation) } else { String::new() });
        fields
    }
}

/// The entity tag of an answer.
fn tag(generation: u64) -> String {
    format!("\"e{generation}\"")
}

/// The generation that an entity tag in a condition names.
pub fn tagged(condition: &str) -> Option<u64> {
    condition.strip_prefix("\"e")?.strip_suffix('"')?.parse().ok()
}

impl RequestFields {
    /// Draws the fields of a request. Most have none.
    pub fn draw(salt: u64, id: u64) -> RequestFields {
        let mut dice = Dice::salted(salt ^ id << 20, "asks");
        RequestFields {
            control: if dice.one_in(3) { dice.pick(REQUESTS) } else { "" },
            authorized: dice.one_in(8),
            kind: dice.pick(&["", "", "a", "b"]),
            language: dice.pick(&["", "en", "de, en", "de,en"]),
        }
    }

    pub fn fields(&self) -> String {
        let mut fields = String::new();
        if !self.control.is_empty() {
            fields.push_str(&format!("Cache-Control: {}\r\n", self.control));
        }
        if self.authorized {
            fields.push_str("Authorization: Basic YTpi\r\n");
        }
        if !self.kind.is_empty() {
            fields.push_str(&format!("X-Kind: {}\r\n", self.kind));
        }
        if !self.language.is_empty() {
            fields.push_str(&format!("Accept-Language: {}\r\n", self.language));
        }
        fields
    }

    /// Whether the request accepts only a stored answer.
    pub fn wants_stored(&self) -> bool {
        has(self.control, "only-if-cached")
    }

    /// The value of a field that `Vary` names. Spaces between list members do not count.
    fn value(&self, name: &str) -> String {
        match name {
            "X-Kind" => self.kind.to_owned(),
            _ => self.language.replace(' ', ""),
        }
    }
}

fn has(control: &str, name: &str) -> bool {
    control.split(", ").any(|word| word == name)
}

fn seconds(control: &str, name: &str) -> Option<u64> {
    let value = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    control.split(", ").find_map(value)
}

/// A reuse of a stored answer.
#[derive(Debug)]
pub struct Reuse {
    /// The answer that had the body, and its request.
    pub whole: (AnswerFields, RequestFields),
    /// The newest answer for it, the same one or a 304, and its request.
    pub last: (AnswerFields, RequestFields),
    /// The request that received it.
    pub second: RequestFields,
    /// Seconds from the newest answer to this request.
    pub since: u64,
    /// `Age` in the received answer.
    pub age: Option<u64>,
    /// Whether a server answered this request with an error.
    pub failed: bool,
    /// Whether the server may have been unreachable.
    pub cut_off: bool,
    /// The request that changed the object after the newest answer, if this request's client may
    /// know of it.
    pub outlived: Option<u64>,
}

/// Checks that the answer may be reused. The error says why not.
pub fn judge(reuse: &Reuse) -> Result<(), &'static str> {
    let &Reuse { whole, last, second, since, age: shown, failed, cut_off, outlived } = reuse;
    // Section 3: an answer that must not be stored is not reused.
    for (told, asked) in [whole, last] {
        let control = told.control;
        if has(control, "no-store") || has(control, "private") || has(asked.control, "no-store") {
            return Err("it must not be stored");
        }
        // Section 3.5.
        let for_all = has(control, "public") || has(control, "must-revalidate");
        if asked.authorized && !for_all && seconds(control, "s-maxage").is_none() {
            return Err("it is for one user");
        }
    }
    // Section 4.4.
    if outlived.is_some() {
        return Err("it has changed since");
    }
    // Section 4.1.
    let (first, control) = (whole.1, last.0.control);
    for name in whole.0.vary.split(", ").filter(|name| !name.is_empty()) {
        if name == "*" || first.value(name) != second.value(name) {
            return Err("it is for another kind of requests");
        }
    }
    // Section 5.2.2.4. If this request had validated the answer, the newest answer would be its
    // own.
    if has(control, "no-cache") {
        return Err("it must be validated");
    }
    let shared = seconds(control, "s-maxage");
    // Without a lifetime and without `Last-Modified`, it is never fresh.
    let lifetime = shared.or(seconds(control, "max-age")).unwrap_or(0);
    // Section 4.2.3: the least age.
    let age = (last.0.age.unwrap_or(0) + since).saturating_sub(SLACK);
    // Section 5.1.
    if shown.is_none_or(|shown| shown < age) {
        return Err("it does not say how old it is");
    }
    let too_old = age.saturating_sub(lifetime);
    let within = |control, name| seconds(control, name).is_some_and(|most| too_old <= most);
    // RFC 5861, section 4: this overrides other directives about freshness.
    let on_error =
        failed && (within(control, "stale-if-error") || within(second.control, "stale-if-error"));
    let wishes = !cut_off && !on_error;
    if wishes && has(second.control, "no-cache") {
        return Err("the request wants it validated");
    }
    if wishes && seconds(second.control, "max-age").is_some_and(|most| age > most) {
        return Err("it is older than the request allows");
    }
    let least = seconds(second.control, "min-fresh");
    if wishes && least.is_some_and(|least| lifetime < age + least) {
        return Err("it is not fresh for as long as the request wants");
    }
    if too_old == 0 {
        return Ok(());
    }
    // Section 4.2.4.
    if shared.is_some() || has(control, "must-revalidate") || has(control, "proxy-revalidate") {
        return Err("it is too old, and must not be sent then");
    }
    let allowed = has(second.control, "max-stale")
        || within(second.control, "max-stale")
        || within(control, "stale-while-revalidate")
        || on_error
        || cut_off;
    if allowed { Ok(()) } else { Err("it is too old") }
}
