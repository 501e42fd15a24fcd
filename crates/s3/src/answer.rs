//! What servers answer, as AWS words it.

use std::borrow::Cow;

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// An answer whose outermost element has the name and the namespace that it has at AWS. Others leave the namespace out, or
/// have another name for the element (rclone does both), and AWS's own clients look at neither. Errors stay as they are.
pub(crate) fn as_usual<'a>(answer: &'a str, name: &str) -> Cow<'a, str> {
    let body = match answer.trim_start().strip_prefix("<?xml") {
        Some(rest) => rest.split_once("?>").map_or("", |(_, body)| body),
        None => answer,
    };
    let Some((start, rest)) = body.trim_start().strip_prefix('<').and_then(|body| body.split_once('>')) else {
        return answer.into();
    };
    let outermost = start.split_whitespace().next().unwrap_or_default();
    let usual = outermost == name && start.contains(NAMESPACE);
    if usual || outermost == "Error" || start.ends_with('/') {
        return answer.into();
    }
    match rest.trim_end().strip_suffix(&format!("</{outermost}>")) {
        Some(inner) => format!("<{name} xmlns=\"{NAMESPACE}\">{inner}</{name}>").into(),
        None => answer.into(),
    }
}

/// The same for a list of parts, where some do not say that it is the whole list.
pub(crate) fn list_of_parts(answer: &str) -> Cow<'_, str> {
    let usual = as_usual(answer, "ListPartsResult");
    match usual.rsplit_once("</ListPartsResult>") {
        Some((inner, rest)) if !inner.contains("<IsTruncated>") => {
            format!("{inner}<IsTruncated>false</IsTruncated></ListPartsResult>{rest}").into()
        }
        _ => usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_and_no_namespace_become_the_usual_ones() {
        let usual = format!("<A xmlns=\"{NAMESPACE}\"><Id>1</Id></A>");
        assert!(matches!(as_usual(&usual, "A"), Cow::Borrowed(_)));
        for answer in ["<A><Id>1</Id></A>", "<?xml version=\"1.0\"?>\n<B><Id>1</Id></B>\n", "<A x=\"y\"><Id>1</Id></A>"]
        {
            assert_eq!(as_usual(answer, "A"), usual, "{answer}");
        }
    }

    #[test]
    fn a_list_that_does_not_say_otherwise_is_whole() {
        let part = "<Part><PartNumber>1</PartNumber></Part>";
        let whole =
            format!("<ListPartsResult xmlns=\"{NAMESPACE}\">{part}<IsTruncated>false</IsTruncated></ListPartsResult>");
        assert_eq!(list_of_parts(&format!("<ListPartsResult>{part}</ListPartsResult>")), whole);
        assert_eq!(list_of_parts(&whole), whole);
        let more = whole.replace("false", "true");
        assert_eq!(list_of_parts(&more), more);
    }

    #[test]
    fn what_is_none_stays_as_it_is() {
        for answer in
            ["", "<", "<A", "<A/>", "<A><B></A", "nothing", "<?xml", "<Error><Code>x</Code></Error>", "<>", "</>"]
        {
            assert_eq!(as_usual(answer, "A"), answer);
        }
    }
}
