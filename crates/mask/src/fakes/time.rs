//! Dates, shifted by days: distances stay, the day of birth does not.

use super::Maker;
use crate::prf::Prf;
use crate::rule::{DateFormat, Rule};

const DAY: i64 = 86_400;
/// As far as dates are shifted if nothing is said.
const DAYS: u32 = 365;

/// How a date is written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// Year, month, day, with what is between them.
    Ymd(char),
    /// Day first, month second.
    Dmy(char),
    /// Month first.
    Mdy(char),
    /// Eight digits.
    Compact,
}

impl Maker {
    /// All dates with the same key (or all, without one) are shifted by the same number of days, never by none.
    pub(super) fn date(&mut self, value: &str, key: Option<&str>, out: &mut String) -> Option<()> {
        let shift = if key.is_none() { self.shift } else { shift(&self.prf, &self.rule, key) };
        if let Some(unit) = match self.rule.format {
            Some(DateFormat::Unix) => Some(DAY),
            Some(DateFormat::UnixMs) => Some(DAY * 1000),
            _ => None,
        } {
            out.push_str(&value.parse::<i64>().ok()?.checked_add(shift * unit)?.to_string());
            return Some(());
        }
        let (form, day, rest) = read(value, self.rule.format)?;
        let shifted = if (days_of(1, 1, 1)..=days_of(9999, 12, 31)).contains(&(day + shift)) { shift } else { -shift };
        write(form, day + shifted, value, out);
        out.push_str(rest);
        Some(())
    }
}

/// By how many days a rule shifts the dates of a key: never by none.
pub(super) fn shift(prf: &Prf, rule: &Rule, key: Option<&str>) -> i64 {
    let days = i64::from(rule.days.unwrap_or(DAYS));
    let mut draw = prf.draw(key.unwrap_or_default().as_bytes());
    let shift = draw.below(2 * days as u64) as i64 - days;
    if shift >= 0 { shift + 1 } else { shift }
}

/// Whether `value` is a date in a form that is known.
pub fn is_date(value: &str) -> bool {
    read(value, None).is_some()
}

/// The day (since 1970) that `YYYY-MM-DD` means.
pub fn day(value: &str) -> Option<i64> {
    read(value, None).map(|(_, day, _)| day)
}

/// A day (since 1970) as `YYYY-MM-DD`.
pub fn iso(day: i64) -> String {
    let mut out = String::new();
    write(Form::Ymd('-'), day, "", &mut out);
    out
}

fn read(value: &str, format: Option<DateFormat>) -> Option<(Form, i64, &str)> {
    if !value.is_ascii() {
        return None;
    }
    // By far the most common form, read at once.
    if let [y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1] = value.as_bytes() {
        let number = |digits: &[&u8]| {
            digits
                .iter()
                .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u32::from(**digit - b'0')))
        };
        let day = civil(number(&[y0, y1, y2, y3])?, number(&[m0, m1])?, number(&[d0, d1])?)?;
        return Some((Form::Ymd('-'), day, ""));
    }
    let end = value.find(['T', ' ']).unwrap_or(value.len());
    let (date, rest) = value.split_at(end);
    if rest.len() == 1 || !rest.chars().all(|c| c.is_ascii_digit() || ":.,+-TZ ".contains(c)) {
        return None;
    }
    if date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()) {
        let day = civil(date[..4].parse().ok()?, date[4..6].parse().ok()?, date[6..].parse().ok()?)?;
        return Some((Form::Compact, day, rest));
    }
    let between = date.chars().find(|c| !c.is_ascii_digit()).filter(|c| "-/.".contains(*c))?;
    let mut parts = date.split(between);
    let (Some(a), Some(b), Some(c), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok())?;
    let (x, y, z) = (number(a)?, number(b)?, number(c)?);
    if a.len() == 4 && b.len() <= 2 && c.len() <= 2 {
        return Some((Form::Ymd(between), civil(x, y, z)?, rest));
    }
    if a.len() > 2 || b.len() > 2 || c.len() != 4 {
        return None;
    }
    let month_first = match format {
        Some(DateFormat::Mdy) => true,
        Some(DateFormat::Dmy) => false,
        _ => between == '/' && x <= 12 || y > 12,
    };
    if month_first {
        Some((Form::Mdy(between), civil(z, x, y)?, rest))
    } else {
        Some((Form::Dmy(between), civil(z, y, x)?, rest))
    }
}

fn write(form: Form, day: i64, like: &str, out: &mut String) {
    let (year, month, day) = civil_of(day);
    // Written 3/4/2020 and not 03/04/2020?
    let short = like.split(|c: char| !c.is_ascii_digit()).take(3).any(|part| part.len() == 1);
    let two = |out: &mut String, number: u32| digits(i64::from(number), if short { 1 } else { 2 }, out);
    match form {
        Form::Ymd(_) | Form::Compact => {
            let between = if let Form::Ymd(between) = form { Some(between) } else { None };
            digits(year, 4, out);
            out.extend(between);
            two(out, month);
            out.extend(between);
            two(out, day);
        }
        Form::Dmy(between) | Form::Mdy(between) => {
            let (first, second) = if matches!(form, Form::Dmy(_)) { (day, month) } else { (month, day) };
            two(out, first);
            out.push(between);
            two(out, second);
            out.push(between);
            digits(year, 4, out);
        }
    }
}

/// A number of at most four digits, with zeros in front up to a width.
fn digits(number: i64, width: usize, out: &mut String) {
    if !(0..10_000).contains(&number) {
        return out.push_str(&format!("{number:0width$}"));
    }
    let (mut left, mut text) = (number, [b'0'; 4]);
    let mut start = text.len();
    while left > 0 || text.len() - start < width {
        start -= 1;
        text[start] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    out.push_str(std::str::from_utf8(&text[start..]).unwrap_or_default());
}

fn civil(year: u32, month: u32, day: u32) -> Option<i64> {
    if year == 0 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (day <= length).then(|| days_of(i64::from(year), i64::from(month), i64::from(day)))
}

/// Days since 1970-01-01, by Howard Hinnant's algorithm: years begin in March.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil_of(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = (of_year - (153 * month + 2) / 5 + 1) as u32;
    let month = if month < 10 { month + 3 } else { month - 9 } as u32;
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms() {
        let form = |text| read(text, None).map(|(form, day, _)| (form, day));
        assert_eq!(form("1970-01-02"), Some((Form::Ymd('-'), 1)));
        assert_eq!(form("2000-02-29T10:00:00Z"), Some((Form::Ymd('-'), 11_016)));
        assert_eq!(form("02.01.1970"), Some((Form::Dmy('.'), 1)));
        assert_eq!(form("1/2/1970"), Some((Form::Mdy('/'), 1)));
        assert_eq!(form("13/01/1970"), Some((Form::Dmy('/'), 12)));
        assert_eq!(form("19700102"), Some((Form::Compact, 1)));
        for wrong in ["2001-02-29", "2001-13-01", "soon", "1-2-3", "", "2001-01-01 noon", "99999999"] {
            assert_eq!(form(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn days_come_back(day in -700_000i64..2_900_000) {
            let (year, month, of_month) = civil_of(day);
            prop_assert_eq!(days_of(year, i64::from(month), i64::from(of_month)), day);
        }
    }
}
