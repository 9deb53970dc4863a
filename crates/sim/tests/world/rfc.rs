//! What a shared cache may do, written from RFC 9111 and RFC 5861 alone: whether an answer that was made for one request may be sent
//! for another one.

use weir_testkit::Dice;

/// What an answer says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    control: &'static str,
    age: Option<u64>,
}

const ANSWERS: &[&str] = &[
    "",
    "max-age=1",
    "max-age=3",
    "max-age=60",
    "public, max-age=5",
    "s-maxage=2, max-age=60",
    "max-age=60, must-revalidate",
    "max-age=1, must-revalidate",
    "max-age=2, proxy-revalidate",
    "max-age=2, stale-while-revalidate=4",
    "max-age=1, stale-if-error=30",
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
];

/// Times are whole seconds on both sides, and a head takes its time.
const SLACK: u64 = 2;

impl Told {
    /// What an answer of this generation says.
    pub fn draw(salt: u64) -> Told {
        let mut dice = Dice::salted(salt, "told");
        Told {
            control: dice.pick(ANSWERS),
            age: dice.pick(&[None, None, Some(0), Some(1), Some(50)]),
        }
    }

    pub fn fields(&self) -> String {
        let age = self.age.map_or(String::new(), |age| format!("Age: {age}\r\n"));
        match self.control {
            "" => age,
            control => format!("Cache-Control: {control}\r\n{age}"),
        }
    }
}

/// The `Cache-Control` of a request; most have none.
pub fn asks(salt: u64, id: u64) -> &'static str {
    let mut dice = Dice::salted(salt ^ id << 20, "asks");
    if dice.one_in(3) { dice.pick(REQUESTS) } else { "" }
}

fn has(control: &str, name: &str) -> bool {
    control.split(", ").any(|word| word == name)
}

fn seconds(control: &str, name: &str) -> Option<u64> {
    let value = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    control.split(", ").find_map(value)
}

/// A second request for a stored answer.
pub struct Reuse<'a> {
    pub told: Told,
    /// `Cache-Control` of the request that the answer was made for.
    pub first: &'a str,
    /// That of the request that got it.
    pub second: &'a str,
    /// Seconds between the answer and the second request.
    pub since: u64,
    /// The server may not have been reached.
    pub cut_off: bool,
}

/// Whether the answer may be sent a second time. The error is why not.
pub fn judge(reuse: &Reuse<'_>) -> Result<(), &'static str> {
    let &Reuse { told, first, second, since, cut_off } = reuse;
    let control = told.control;
    // Section 3: what is not stored is not sent again.
    if has(control, "no-store") || has(control, "private") || has(first, "no-store") {
        return Err("it must not be stored");
    }
    // Section 5.2.2.4: nothing was validated, since the answers have no validators.
    if has(control, "no-cache") {
        return Err("it must be validated");
    }
    let shared = seconds(control, "s-maxage");
    let Some(lifetime) = shared.or(seconds(control, "max-age")) else {
        return Err("it has no lifetime");
    };
    // Section 4.2.3: it is at least as old as this.
    let age = (told.age.unwrap_or(0) + since).saturating_sub(SLACK);
    if !cut_off && has(second, "no-cache") {
        return Err("the request wants it validated");
    }
    if !cut_off && seconds(second, "max-age").is_some_and(|most| age > most) {
        return Err("it is older than the request allows");
    }
    if !cut_off && seconds(second, "min-fresh").is_some_and(|least| lifetime < age + least) {
        return Err("it is not fresh for as long as the request wants");
    }
    let Some(too_old) = age.checked_sub(lifetime).filter(|_| age > lifetime) else { return Ok(()) };
    // Section 4.2.4.
    if shared.is_some() || has(control, "must-revalidate") || has(control, "proxy-revalidate") {
        return Err("it is too old, and must not be sent then");
    }
    let within = |control, name| seconds(control, name).is_some_and(|most| too_old <= most);
    let allowed = has(second, "max-stale")
        || within(second, "max-stale")
        || within(control, "stale-while-revalidate")
        || cut_off;
    if allowed { Ok(()) } else { Err("it is too old") }
}
