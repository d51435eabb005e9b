# frozen_string_literal: true

require "json"

module Candle
  class Server
    # Messages and tools of a request, as the models' chat templates take them.
    #
    # @api private
    module ChatMessages
      module_function

      # @param list [Array] as OpenAI and Ollama write messages
      # @param limits [Limits]
      # @return [Array<Hash>]
      # @raise [Problem] 400, naming the message
      def read(list, limits)
        if list.size > limits.batch
          raise problem("messages has #{list.size} elements, and the server takes #{limits.batch}")
        end

        messages = list.each_with_index.map { |message, index| message(message, "messages[#{index}]") }
        size = messages.sum { |message| message[:content].size }
        return messages if size <= limits.characters

        raise problem("the messages have #{size} characters, and the server takes #{limits.characters}")
      end

      # @param value [Object] a function as OpenAI describes it
      # @param name [String] where it stands
      # @return [Tool]
      # @raise [Problem] 400
      def tool(value, name)
        function = value["function"] if value.is_a?(Hash)
        unless function.is_a?(Hash) && function["name"].is_a?(String) && !function["name"].empty?
          raise problem("#{name} must be a function with a name", "tools")
        end

        parameters = function["parameters"] || {}
        raise problem("the parameters of #{name} must be a JSON schema", "tools") unless parameters.is_a?(Hash)

        Tool.new(name: function["name"], description: function["description"].to_s, parameters: parameters)
      end

      def message(value, name)
        raise problem("#{name} must be an object with a role") unless value.is_a?(Hash) && value["role"].is_a?(String)

        role = value["role"] == "developer" ? "system" : value["role"]
        message = { role: role, content: content(value["content"], name) }
        message[:tool_calls] = calls(value["tool_calls"], name) if value["tool_calls"].is_a?(Array)
        %w[name tool_call_id tool_name].each { |key| message[key.to_sym] = value[key] if value[key].is_a?(String) }
        message
      end

      def content(value, name)
        case value
        when nil then ""
        when String then value
        when Array then value.map { |part| part_text(part, name) }.join
        else raise problem("the content of #{name} must be a text or a list of parts")
        end
      end

      def part_text(part, name)
        return part["text"] if part.is_a?(Hash) && part["type"] == "text" && part["text"].is_a?(String)

        kind = part.is_a?(Hash) ? part["type"].to_s : "unknown"
        raise problem("#{name} has a part of the kind #{kind[0, 40]}, and the model takes text only")
      end

      # Templates want arguments as an object; OpenAI's clients send them as JSON in a text.
      def calls(list, name)
        list.map do |call|
          function = call["function"] if call.is_a?(Hash)
          raise problem("a tool call of #{name} has no function") unless function.is_a?(Hash)

          arguments = function["arguments"]
          arguments = JSON.parse(arguments, max_nesting: 64) if arguments.is_a?(String) && !arguments.empty?
          { id: call["id"], type: "function", function: { name: function["name"].to_s, arguments: arguments || {} } }
        end
      rescue JSON::ParserError
        raise problem("the arguments of a tool call of #{name} are not valid JSON")
      end

      def problem(message, param = "messages")
        Problem.new(400, "invalid_request", message, param: param)
      end
      private_class_method :message, :content, :part_text, :calls, :problem
    end
  end
end
