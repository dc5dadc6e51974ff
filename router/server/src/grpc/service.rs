//! The calls of `pelton.v1.Pelton`.

use std::{pin::Pin, sync::Arc};

use futures::{Stream, StreamExt as _, stream};
use pelton_rpc::v1::{self, pelton_server::Pelton};
use tonic::{Request, Response, Status};

use super::{
    bounds::MessageBytes,
    convert::{self, MessageWriter},
};
use crate::{
    error::ApiError,
    generate::{Serving, feed},
    http::{
        around::{REQUEST_ID, RequestId},
        terms,
    },
};

pub(super) struct PeltonService {
    serving: Arc<Serving>,
}

impl PeltonService {
    pub(super) fn new(serving: Arc<Serving>) -> Self {
        Self { serving }
    }
}

/// Bytes of a request's message.
fn length<T>(request: &Request<T>) -> usize {
    request.extensions().get::<MessageBytes>().map_or(usize::MAX, |bytes| bytes.0)
}

type Generated = Pin<Box<dyn Stream<Item = Result<v1::GenerateResponse, Status>> + Send>>;

impl PeltonService {
    async fn begin(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Generated>, Status> {
        let headers = request.metadata().as_ref();
        let terms = terms::read(headers, request.extensions())?.within(terms::grpc_timeout(headers)?);
        let bytes = length(&request);
        let message = request.into_inner();
        self.serving.check_model(Some(&message.model))?;
        let name = convert::name_of_prompt(&message);
        let by_our_names = |error: ApiError| convert::by_our_names(error, name);
        let request = self.serving.on_text(bytes, move || convert::request(message)).await?;
        let generation = self.serving.generate(request, terms).await.map_err(by_our_names)?;
        let writer = MessageWriter::new(self.serving.tokenizer.clone(), &generation.prompts()[0], generation.choices());
        let feed = feed(generation, writer, &self.serving.limits, &self.serving.metrics);
        let messages = feed.flat_map(|piece| match piece {
            Ok(Ok(messages)) => stream::iter(messages).map(Ok).left_stream(),
            Ok(Err(status)) => stream::iter([Err(status)]).right_stream(),
            Err(cut) => stream::iter([Err(Status::aborted(cut.to_string()))]).right_stream(),
        });
        Ok(Response::new(Box::pin(messages)))
    }
}

#[tonic::async_trait]
impl Pelton for PeltonService {
    type GenerateStream = Generated;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Generated>, Status> {
        let Some(id) = convert::id(request.get_ref())? else { return self.begin(request).await };
        if let Some(RequestId(call)) = request.extensions().get() {
            tracing::debug!(id = ?id, call, "generate");
        }
        // In the place of the call's: `http::around` leaves it there.
        match self.begin(request).await {
            Ok(mut response) => {
                response.metadata_mut().insert(REQUEST_ID.as_str(), id);
                Ok(response)
            }
            Err(mut status) => {
                status.metadata_mut().insert(REQUEST_ID.as_str(), id);
                Err(status)
            }
        }
    }

    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeResponse>, Status> {
        let bytes = length(&request);
        let message = request.into_inner();
        self.serving.check_model(Some(&message.model))?;
        let prompt = self.serving.on_text(bytes, move || convert::tokenize_prompt(message)).await?;
        let name = if prompt.is_chat() { "chat.messages" } else { "text" };
        let prepared = self.serving.count(prompt).await.map_err(|error| convert::by_our_names(error, name))?;
        let max_model_len = self.serving.max_model_len().unwrap_or(0);
        Ok(Response::new(v1::TokenizeResponse { token_ids: prepared.ids.to_vec(), max_model_len }))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeResponse>, Status> {
        let message = request.into_inner();
        self.serving.check_model(Some(&message.model))?;
        let text = self.serving.detokenize("token_ids", message.token_ids).await?;
        Ok(Response::new(v1::DetokenizeResponse { text }))
    }

    async fn models(&self, _: Request<v1::ModelsRequest>) -> Result<Response<v1::ModelsResponse>, Status> {
        let max_model_len = self.serving.max_model_len().unwrap_or(0);
        let model = |id: &String| v1::Model { id: id.clone(), max_model_len };
        Ok(Response::new(v1::ModelsResponse { models: self.serving.served_names.iter().map(model).collect() }))
    }
}
