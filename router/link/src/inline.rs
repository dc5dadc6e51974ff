//! Frames over gRPC, for a worker that shares no memory: the engine's `RouterEnd` works on local memory, and here its
//! bytes are carried to the worker's stream and back. Two carriers: a thread that sleeps on submissions, a task for results.

use std::{sync::Arc, thread, time::Duration};

use pelton_frame::{Bell, Capacities, Carrier, Inline, Layout, Memory};
use pelton_rpc::v1::{self, StepsRequest, StepsResponse, steps_request, steps_response};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{client::Client, error::Trouble};

/// How long the sending thread sleeps before it looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(500);

/// A stream of steps that stands.
pub(crate) struct Steps {
    outgoing: Sender<StepsRequest>,
    incoming: Streaming<StepsResponse>,
}

impl Steps {
    /// Opens the stream and agrees on the layout.
    pub(crate) async fn open(client: &mut Client, nonce: &[u8; 16], layout: &Layout) -> Result<Self, Trouble> {
        let capacities = layout.capacities();
        let (outgoing, requests) = channel(capacities.frames as usize * (1 + capacities.slots as usize));
        let attach = v1::Attach { nonce: nonce.to_vec(), capacities: Some(wire(capacities)) };
        let attach = StepsRequest { kind: Some(steps_request::Kind::Attach(attach)) };
        outgoing.send(attach).await.expect("the receiver is held below");
        let call = Trouble::call("Steps");
        let mut incoming = client.steps(ReceiverStream::new(requests)).await.map_err(&call)?.into_inner();
        match incoming.message().await.map_err(&call)?.and_then(|response| response.kind) {
            Some(steps_response::Kind::LayoutChecksum(checksum)) if checksum == layout.checksum() => {}
            Some(steps_response::Kind::LayoutChecksum(checksum)) => {
                let ours = layout.checksum();
                return Err(Trouble::Contract(format!("the worker's layout is {checksum:#x}, and ours is {ours:#x}")));
            }
            _ => return Err(Trouble::Contract("the worker's stream does not begin with a layout".to_owned())),
        }
        Ok(Self { outgoing, incoming })
    }

    /// Takes masks to the worker. One for which the stream has no room is left behind: its row is drawn a step later.
    pub(crate) fn mask_carrier(&self) -> Carrier {
        let outgoing = self.outgoing.downgrade(); // whoever writes masks does not keep the stream open
        Box::new(move |mask| {
            if let Some(outgoing) = outgoing.upgrade() {
                drop(outgoing.try_send(StepsRequest { kind: Some(steps_request::Kind::Mask(mask)) }));
            }
        })
    }

    /// Carries until the stream ends or the memory is detached; returns why. Dropping it ends the stream.
    pub(crate) async fn carry(self, memory: Memory, bell: Arc<Bell>) -> Trouble {
        let Self { outgoing, mut incoming } = self;
        let plans = memory.clone();
        let sender =
            thread::Builder::new().name("pelton-frames".to_owned()).spawn(move || send_plans(plans, &outgoing));
        if let Err(error) = sender {
            return Trouble::System { call: "starting a thread", error };
        }
        let mut inlet = Inline::new(memory);
        loop {
            let result = match incoming.message().await {
                Ok(Some(StepsResponse { kind: Some(steps_response::Kind::Result(bytes)) })) => bytes,
                Ok(Some(_)) => return Trouble::Contract("the worker's stream carries no result".to_owned()),
                Ok(None) => return Trouble::StreamEnded,
                Err(status) => return Trouble::Call { call: "Steps", status },
            };
            if let Err(error) = inlet.accept_result(&result) {
                return error.into();
            }
            bell.ring();
        }
    }
}

/// Ends when the memory is detached or nobody receives any more.
fn send_plans(memory: Memory, outgoing: &Sender<StepsRequest>) {
    let mut outlet = Inline::new(memory.clone());
    while !memory.is_detached() && !outgoing.is_closed() {
        match outlet.next_plan(LOOK) {
            Ok(None) => {}
            Ok(Some(plan)) => {
                let frame = StepsRequest { kind: Some(steps_request::Kind::Frame(plan)) };
                if outgoing.blocking_send(frame).is_err() {
                    return; // the stream has ended, and its other half tells why
                }
            }
            // Only our own process writes this memory.
            Err(error) => panic!("a plan that the router's end has checked: {error}"),
        }
    }
}

fn wire(capacities: &Capacities) -> v1::Capacities {
    let Capacities {
        frames,
        slots,
        tokens,
        appends,
        copies,
        biases,
        suppressed,
        history,
        top_logprobs,
        saves,
        loads,
        pooled_width,
        scores,
        embeds,
        embed_width,
    } = *capacities;
    v1::Capacities {
        frames,
        slots,
        tokens,
        appends,
        copies,
        biases,
        suppressed,
        history,
        top_logprobs,
        saves,
        loads,
        pooled_width,
        scores,
        embeds,
        embed_width,
    }
}
