//! Reads `disable_symlinks`.

use weir_conf::{Directive as Line, Error};

use crate::config::scope::Scope;
use crate::files::symlinks::{Refuse, Symlinks};
use weir_values::Template;

/// `disable_symlinks off | on | if_not_owner [from=PART]`
pub fn set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let (mut refuse, mut from) = (None, None);
    for word in &d.args {
        match word.bytes.as_slice() {
            b"off" => refuse = Some(Refuse::Nothing),
            b"on" => refuse = Some(Refuse::All),
            b"if_not_owner" => refuse = Some(Refuse::NotOwner),
            text => {
                let part =
                    text.strip_prefix(b"from=").ok_or_else(|| d.invalid("parameter", word))?;
                let part = Template::new(&mut s.setup.variables, part);
                from = Some(part.map_err(|text| d.error_at(word, text))?);
            }
        }
    }
    let Some(refuse) = refuse else {
        let text = "\"disable_symlinks\" must have \"off\", \"on\" or \"if_not_owner\" parameter";
        return Err(d.error(text));
    };
    if let ([first, second], None) = (d.args.as_slice(), &from) {
        let text = format!("duplicate parameters \"{} {}\"", first.lossy(), second.lossy());
        return Err(d.error(text));
    }
    if refuse == Refuse::Nothing && from.is_some() {
        return Err(d.error("\"from=\" cannot be used with \"off\" parameter"));
    }
    Scope::change(&mut s.location.core).symlinks = Symlinks { refuse, from };
    Ok(())
}
