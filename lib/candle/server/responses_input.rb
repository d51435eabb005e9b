# frozen_string_literal: true

module Candle
  class Server
    # The input of OpenAI's Responses, as messages of its chats.
    #
    # @api private
    module ResponsesInput
      # What a part of a message with text may be.
      TEXTS = %w[input_text output_text text].freeze
      private_constant :TEXTS

      class << self
        # @param input [String, Array] a text, or messages, calls of functions and what they returned
        # @param instructions [String, nil] what comes before all of it
        # @return [Array<Hash>] as {ChatMessages.read} takes them
        # @raise [Problem] 400, naming the item
        def messages(input, instructions)
          input = [{ "role" => "user", "content" => input }] if input.is_a?(String)
          list = input.each_with_index.map { |item, index| message(item, "input[#{index}]") }
          list.unshift({ "role" => "system", "content" => instructions }) if instructions
          joined(list)
        end

        private

        def message(item, name)
          raise problem("#{name} must be an object") unless item.is_a?(Hash)

          case item["type"]
          when nil, "message" then { "role" => item["role"], "content" => content(item["content"], name) }
          when "function_call" then call(item)
          when "function_call_output"
            { "role" => "tool", "tool_call_id" => item["call_id"], "content" => content(item["output"], name) }
          when "reasoning" then thought(item)
          else raise problem("#{name} is of the type #{item["type"].to_s[0, 40]}, which this server does not take")
          end
        end

        def content(value, name)
          return value unless value.is_a?(Array)

          value.map do |part|
            type = part["type"] if part.is_a?(Hash)
            next { "type" => "text", "text" => part["text"] } if TEXTS.include?(type)
            next part if type == "input_image"

            raise problem("#{name} has a part of the type #{type.to_s[0, 40]}, which this server does not take")
          end
        end

        def call(item)
          { "role" => "assistant", "content" => nil,
            "tool_calls" => [{ "id" => item["call_id"], "function" => item.slice("name", "arguments") }] }
        end

        # The template decides what the model is told of it.
        def thought(item)
          parts = item["content"].is_a?(Array) ? item["content"] : []
          text = parts.filter_map { |part| part["text"] if part.is_a?(Hash) }.grep(String).join
          text.empty? ? nil : { "role" => "assistant", "content" => nil, "reasoning_content" => text }
        end

        # The calls of one turn are one message, with the reasoning and the text before them.
        def joined(list)
          list.compact.each_with_object([]) do |message, whole|
            last = whole.last
            open = last && last["role"] == "assistant" && message["role"] == "assistant"
            if open && message["tool_calls"]
              last["tool_calls"] = Array(last["tool_calls"]) + message["tool_calls"]
            elsif open && last.keys.sort == %w[content reasoning_content role] && last["content"].nil?
              last["content"] = message["content"]
            else
              whole << message
            end
          end
        end

        def problem(message)
          Problem.new(400, "invalid_request", message, param: "input")
        end
      end
    end
  end
end
