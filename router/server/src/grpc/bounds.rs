//! How much a message holds on the wire, seen before a decoder makes anything of it: two bytes there can be a message of a chat, which takes
//! 144 of memory and some hundreds more as JSON. The bound is that of a request over HTTP.
//!
//! Texts, and messages within messages, are counted; numbers are not, of which two bytes become four.

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use bytes::{Buf as _, Bytes};
use tonic::Status;

use crate::{
    error::ApiError,
    http::{
        App,
        body::{Held, Pieces},
    },
    json_size::VALUES_MAX,
};

/// What stands before a message: whether it is packed, and its length.
const HEAD: usize = 5;

/// Bytes of a request's message.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageBytes(pub(super) usize);

/// Which fields of a message are messages themselves, and of which form.
struct Form(&'static [(u64, &'static Form)]);

const FLAT: Form = Form(&[]);
const CHAT: Form = Form(&[(1, &MESSAGE)]);
const MESSAGE: Form = Form(&[(3, &FLAT)]);
const SAMPLING: Form = Form(&[(21, &FLAT)]);
/// Messages that may hold many, by the path of their call; those of other calls have numbers and a text or two, and are bounded by their
/// bytes alone. A text that stands where one of another call has a message is not misread: each has its own.
const FORMS: [(&str, Form); 2] = [
    ("/pelton.v1.Pelton/Generate", Form(&[(4, &CHAT), (5, &SAMPLING)])),
    ("/pelton.v1.Pelton/Tokenize", Form(&[(3, &CHAT)])),
];

/// Refuses a message that is too long or holds too much, and says how long others are.
pub(super) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    let form = FORMS.iter().find(|(path, _)| *path == request.uri().path()).map(|(_, form)| form);
    let (mut parts, body) = request.into_parts();
    let body = match whole(body, &app).await {
        Ok(body) => body,
        Err(error) => return Status::from(error).into_http(),
    };
    let message = body.get(HEAD..).unwrap_or_default();
    if form.is_some_and(|form| count(message, form, &mut VALUES_MAX.clone()).is_none()) {
        let reason = format!("it holds more than {VALUES_MAX} texts and messages, the most that a request may have");
        return Status::from(ApiError::BadMessage { reason }).into_http();
    }
    parts.extensions.insert(MessageBytes(body.len()));
    next.run(Request::from_parts(parts, Body::from(body))).await
}

/// The body of a call that has one message. What is too long is refused as soon as it says so.
async fn whole(body: Body, app: &App) -> Result<Bytes, ApiError> {
    let limit = app.serving.limits.body_bytes;
    let mut held = Held::new(limit.saturating_add(HEAD), &app.serving.body_rooms)?;
    let mut pieces = Pieces::of(body, app);
    while let Some(piece) = pieces.next().await? {
        held.add(&piece)?;
        let declared = held.bytes().get(1..HEAD).map_or(0, |mut length| length.get_u32() as usize);
        if declared > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
    }
    Ok(held.whole())
}

/// Counts what is in a message down from `left`; `None`: it is more. Of what cannot be decoded the decoder makes no more than what stands
/// before it.
fn count(mut wire: &[u8], form: &Form, left: &mut usize) -> Option<()> {
    while let Some(key) = varint(&mut wire) {
        let length = match key & 7 {
            0 => {
                varint(&mut wire);
                continue;
            }
            1 => 8,
            2 => {
                *left = left.checked_sub(1)?;
                varint(&mut wire).unwrap_or(u64::MAX)
            }
            // Groups, which nobody sends: what is in one is counted as if it stood here.
            3 | 4 => continue,
            5 => 4,
            _ => break,
        };
        let Some((inner, rest)) = usize::try_from(length).ok().and_then(|length| wire.split_at_checked(length)) else {
            break;
        };
        if let Some((_, form)) = form.0.iter().find(|(field, _)| key & 7 == 2 && *field == key >> 3) {
            count(inner, form, left)?;
        }
        wire = rest;
    }
    Some(())
}

/// The next number; `None`: there is none.
fn varint(wire: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = wire.split_first()?;
        *wire = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use pelton_rpc::v1;
    use prost::{Message as _, encoding::encode_varint};

    use super::*;

    fn field(number: u64, inner: &[u8]) -> Vec<u8> {
        let mut wire = Vec::new();
        encode_varint(number << 3 | 2, &mut wire);
        encode_varint(inner.len() as u64, &mut wire);
        wire.extend_from_slice(inner);
        wire
    }

    fn counted(wire: &[u8], form: &Form) -> usize {
        let mut left = VALUES_MAX;
        count(wire, form, &mut left).map_or(usize::MAX, |()| VALUES_MAX - left)
    }

    #[test]
    fn texts_and_messages_are_counted_wherever_they_stand() {
        let generate = &FORMS[0].1;
        let message = [field(1, b"user"), field(2, b"\x0a\x01a\x0a\x01b"), field(3, &field(3, b"{}"))].concat();
        let chat = field(4, &field(1, &message).repeat(3));
        assert_eq!(counted(&chat, generate), 1 + 3 * (1 + 2 + 2), "what looks like fields in a text is a text");
        let sampling = field(5, &[field(12, b"stop").repeat(4), field(21, &field(1, b"a").repeat(5))].concat());
        assert_eq!(counted(&[chat.clone(), sampling].concat(), generate), 16 + 1 + 4 + 1 + 5);
        // A number, 8 bytes, 4 bytes, a group around a text.
        let others = [&[8, 0x80, 1, 9][..], &[0; 8], &[13, 0, 0, 0, 0, 11], &field(2, b"x"), &[12]].concat();
        assert_eq!(counted(&others, generate), 1);
        assert_eq!(counted(&field(4, &field(1, b"").repeat(VALUES_MAX)), generate), usize::MAX);
    }

    #[test]
    fn what_cannot_be_decoded_is_counted_up_to_there() {
        for broken in [&b"\x80"[..], b"\x0a", b"\x0a\x05a", b"\x0f\x0a\x00", &[0xff; 20]] {
            assert!(counted(&[&b"\x0a\x00"[..], broken].concat(), &CHAT) <= 2, "{broken:?}");
        }
    }

    #[test]
    fn the_forms_are_those_of_the_contract() {
        let call = v1::ToolCall { id: "1".into(), name: "f".into(), arguments: "{}".into() };
        let message = v1::Message { role: "user".into(), tool_calls: vec![call; 2], ..Default::default() };
        let chat = v1::Chat { messages: vec![message; 3], ..Default::default() };
        let in_chat = 3 * (1 + 1 + 2 * (1 + 3));
        let choice = v1::sampling::Constraint::Choice(v1::Choice { texts: vec!["a".into(); 4] });
        let generate = v1::GenerateRequest {
            input: Some(v1::generate_request::Input::Chat(chat.clone())),
            sampling: Some(v1::Sampling { constraint: Some(choice), ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(counted(&generate.encode_to_vec(), &FORMS[0].1), 1 + in_chat + 1 + 1 + 4);
        let tokenize =
            v1::TokenizeRequest { input: Some(v1::tokenize_request::Input::Chat(chat)), ..Default::default() };
        assert_eq!(counted(&tokenize.encode_to_vec(), &FORMS[1].1), 1 + in_chat);
    }
}
