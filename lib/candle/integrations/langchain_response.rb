# frozen_string_literal: true

module Langchain
  module LLM
    # What {RedCandle} answers, by the names that langchainrb gives to answers. Later versions keep their base class in
    # `Response`.
    class RedCandleResponse < (const_defined?(:BaseResponse) ? BaseResponse : Response::BaseResponse)
      # @return [Time, nil]
      def created_at
        raw_response[:created_at]
      end

      # @return [String, nil]
      def completion
        raw_response[:completion]
      end

      # @return [Array<String>]
      def completions
        [completion].compact
      end

      # @return [String, nil]
      def chat_completion
        raw_response[:chat]
      end

      # @return [String, nil] what the model thought before it answered
      def reasoning
        raw_response[:reasoning]
      end

      # @return [Array<String>]
      def chat_completions
        [chat_completion].compact
      end

      # @return [Array<Float>, nil]
      def embedding
        embeddings.first
      end

      # @return [Array<Array<Float>>]
      def embeddings
        raw_response[:embeddings] || []
      end

      # @return [String]
      def role
        "assistant"
      end

      # @return [Array<Hash>] as OpenAI has them
      def tool_calls
        Array(raw_response[:tool_calls]).map do |call|
          { "id" => call.id, "type" => "function",
            "function" => { "name" => call.name, "arguments" => JSON.generate(call.arguments) } }
        end
      end

      # @return [Integer, nil]
      def prompt_tokens
        raw_response[:prompt_tokens]
      end

      # @return [Integer, nil]
      def completion_tokens
        raw_response[:completion_tokens]
      end

      # @return [Integer, nil]
      def total_tokens
        prompt_tokens && (prompt_tokens + completion_tokens.to_i)
      end
    end
  end
end
