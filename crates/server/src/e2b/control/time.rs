//! Times as text: RFC 3339.

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;

/// Milliseconds since 1970 as `2026-01-31T12:00:00.000Z`.
pub fn format(ms: u64) -> String {
    // The last moment of the year 9999: later ones have no such form.
    let ms = i64::try_from(ms).unwrap_or(i64::MAX).min(253_402_300_799_999);
    let (days, rest) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = date_of(days);
    let (hour, minute, second, milli) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// `2026-01-31T12:00:00.123456+02:00` as milliseconds since 1970; what is finer is cut off.
pub fn parse(text: &str) -> Option<u64> {
    let number = |text: &str| -> Option<i64> {
        (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
    };
    let bytes = text.as_bytes();
    if !text.is_ascii()
        || text.len() < 20
        || bytes[4] != b'-'
        || bytes[7] != b'-'
        || bytes[13] != b':'
        || bytes[16] != b':'
    {
        return None;
    }
    if !matches!(bytes[10], b'T' | b't' | b' ') {
        return None;
    }
    let (year, month, day) = (number(&text[..4])?, number(&text[5..7])?, number(&text[8..10])?);
    let (hour, minute, second) = (number(&text[11..13])?, number(&text[14..16])?, number(&text[17..19])?);
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    if !in_range || date_of(days_of(year, month, day)) != (year, month, day) {
        return None;
    }
    let rest = &text[19..];
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
        None => ("", rest),
    };
    let milli = number(&format!("{fraction:0<3}")[..3])?;
    let offset_minutes = match zone.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let minutes = number(&zone[1..3])? * 60 + number(&zone[4..6])?;
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = (hour * 60 + minute - offset_minutes) * 60 + second;
    u64::try_from(days_of(year, month, day) * DAY_MS + seconds * 1000 + milli).ok()
}

/// Days from 1970 to a date. Years begin in March here: the odd day is then at their end.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_written_right() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(format(ms), text);
            assert_eq!(parse(text), Some(ms));
        }
        assert_eq!(format(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn every_day_of_many_years_survives_the_way_there_and_back() {
        for day in 0..200 * 366 {
            let (year, month, date) = date_of(day);
            assert_eq!(days_of(year, month, date), day);
        }
    }

    #[test]
    fn other_spellings_are_read() {
        assert_eq!(parse("1970-01-01T02:00:00+02:00"), Some(0));
        assert_eq!(parse("1970-01-01T00:00:00.123456-01:00"), Some(3_600_123));
        assert_eq!(parse("1970-01-01 00:00:01Z"), Some(1000));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "now",
            "2024-02-30T00:00:00Z",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-01-01T25:00:00Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00.",
            "2024-01-01T00:00:00.5",
            "2024-01-01T00:00:00+0200",
            "2024-01-01T00:00:00é",
            "1960-01-01T00:00:00Z",
            "+024-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
