# frozen_string_literal: true

require "securerandom"

module Candle
  class Server
    # Reranking as Cohere and Jina ask for it; the answer has the fields of both.
    #
    # @api private
    class Rerank < API
      # @param problem [Problem]
      # @return [Hash]
      def error(problem)
        { message: problem.message, detail: problem.message, code: problem.code }
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def create(request)
        entry = models.fetch(request.field("model", String, default: nil), :reranker)
        query = request.field("query", String)
        documents = documents(request)
        top = request.field("top_n", Integer, default: nil)
        raise invalid("top_n must be positive", param: "top_n") if top && top < 1

        ranked, tokens = compute(request) do
          [entry.model.rerank(query, documents, top_k: top), count(entry.model, query, documents)]
        end
        count_tokens(entry, input: tokens)
        json({ id: SecureRandom.uuid, object: "list", model: entry.name, results: results(request, ranked),
               usage: { prompt_tokens: tokens, total_tokens: tokens },
               meta: { api_version: { version: "1" }, billed_units: { search_units: 1 } } })
      end

      private

      # Texts, or objects with a text.
      def documents(request)
        list = request.field("documents", Array).map { |one| one.is_a?(Hash) ? one["text"] : one }
        raise invalid("documents must not be empty", param: "documents") if list.empty?

        texts(list, "documents").first
      end

      def count(model, query, documents)
        read = model.tokenizer.encode(query).size
        documents.sum { |text| read + model.tokenizer.encode(text, add_special_tokens: false).size + 1 }
      end

      def results(request, ranked)
        with_text = request.flag("return_documents", false)
        ranked.map do |found|
          result = { index: found[:doc_id], relevance_score: found[:score] }
          with_text ? result.merge(document: { text: found[:text] }) : result
        end
      end
    end
  end
end
