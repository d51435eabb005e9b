# frozen_string_literal: true

module Langchain
  class Assistant
    module LLM
      module Adapters
        # Lets `Langchain::Assistant` talk with {Langchain::LLM::RedCandle}. Messages, tools and calls have the form of
        # OpenAI's.
        class RedCandle < OpenAI
          # Chooses this adapter for our models, and leaves others to langchainrb.
          module Choice
            # @param llm [Langchain::LLM::Base]
            # @return [Base]
            def build(llm)
              llm.is_a?(::Langchain::LLM::RedCandle) ? RedCandle.new : super
            end
          end

          # @param messages [Array<Hash>]
          # @param tools [Array] objects that extend `Langchain::ToolDefinition`
          # @param tool_choice [String] one of {#allowed_tool_choices}, or the name of a function
          # @return [Hash] what {Langchain::LLM::RedCandle#chat} takes; instructions are among the messages
          def build_chat_params(messages:, tools:, tool_choice:, **)
            return { messages: messages } if tools.empty?

            { messages: messages, tools: build_tools(tools), tool_choice: tool_choice }
          end

          # @return [Array<String>]
          def allowed_tool_choices
            %w[auto none required]
          end
        end

        ::Langchain::Assistant::LLM::Adapter.singleton_class.prepend(RedCandle::Choice)
      end
    end
  end
end
