# frozen_string_literal: true

require "json"

module Candle
  class Server
    # Messages and tools of a request, as the models' chat templates take them.
    #
    # @api private
    module ChatMessages
      # What OpenAI calls a part with an image, in chats and in Responses.
      IMAGES = %w[image_url input_image].freeze
      # What clients call the reasoning of an earlier answer.
      THOUGHTS = %w[reasoning_content reasoning thinking].freeze
      private_constant :IMAGES, :THOUGHTS

      module_function

      # @param list [Array] as OpenAI and Ollama write messages
      # @param limits [Limits]
      # @param entry [Models::Entry] the model that reads them; of a kind that sees they may have images
      # @return [Messages::Checked] the content of those with images is a list of parts, as {VLM#chat} takes it
      # @raise [Problem] 400, naming the message
      def read(list, limits, entry)
        if list.size > limits.batch
          raise problem("messages has #{list.size} elements, and the server takes #{limits.batch}")
        end

        messages = list.each_with_index.map { |message, index| message(message, "messages[#{index}]", entry) }
        check(messages, limits)
        Messages::Checked.new(messages)
      end

      # @param texts [Array<String>] what a message says
      # @param images [Array<Picture>] what it shows
      # @return [String, Array<Hash>] its content
      def content_of(texts, images)
        return texts.join if images.empty?

        [*images.map { |image| { type: "image", image: image } },
         *texts.map { |text| { type: "text", text: text } }]
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
      rescue ArgumentError => e
        raise problem("#{name}: #{e.message}", "tools")
      end

      def check(messages, limits)
        parts = messages.flat_map { |message| Array(message[:content]) }
        size = parts.sum { |part| part.is_a?(Hash) ? part[:text].to_s.size : part.size }
        if size > limits.characters
          raise problem("the messages have #{size} characters, and the server takes #{limits.characters}")
        end

        count = parts.count { |part| Messages.image?(part) }
        return if count <= limits.images

        raise problem("the messages have #{count} images, and the server takes #{limits.images}")
      end

      def message(value, name, entry)
        raise problem("#{name} must be an object with a role") unless value.is_a?(Hash) && value["role"].is_a?(String)
        raise problem(Messages.unknown_role(value["role"], name)) unless role?(value["role"], entry)

        role = value["role"] == "developer" ? "system" : value["role"]
        message = { role: role, content: content(value, name, entry.kind == :vlm && role == "user") }
        message[:tool_calls] = calls(value["tool_calls"], name) if value["tool_calls"].is_a?(Array)
        message.merge(named(value), role == "assistant" ? thought(value) : {})
      end

      def named(value)
        value.slice("name", "tool_call_id", "tool_name").select { |_, text| text.is_a?(String) }
             .transform_keys(&:to_sym)
      end

      def thought(value)
        { reasoning_content: value.values_at(*THOUGHTS).grep(String).first }.compact
      end

      def role?(role, entry)
        Messages.role?(role) { entry.model.tokenizer&.chat_templates&.values if entry.model.respond_to?(:tokenizer) }
      end

      # Parts in the order they came in; Ollama's images stand beside the text.
      def content(value, name, images)
        parts = parts(value["content"], name, images)
        beside = value["images"].is_a?(Array) ? value["images"] : []
        raise blind(name, "images") if beside.any? && !images

        seen = beside.each_with_index.map { |image, index| Picture.read(image, "#{name}.images[#{index}]", bare: true) }
        return content_of(parts, seen) if parts.all?(String)

        seen.map { |image| { type: "image", image: image } } +
          parts.map { |part| part.is_a?(String) ? { type: "text", text: part } : part }
      end

      def parts(value, name, images)
        case value
        when nil then []
        when String then [value]
        when Array then value.map { |part| part(part, name, images) }
        else raise problem("the content of #{name} must be a text or a list of parts")
        end
      end

      # @return [String, Hash] a text, or a part with an image
      def part(part, name, images)
        type = part.is_a?(Hash) ? part["type"].to_s : "unknown"
        return part["text"] if type == "text" && part["text"].is_a?(String)
        raise blind(name, type) unless images && IMAGES.include?(type)

        url = part["image_url"]
        url = url["url"] if url.is_a?(Hash)
        { type: "image", image: Picture.read(url, "the image_url of #{name}") }
      end

      def blind(name, type)
        problem("#{name} has a part of the kind #{type[0, 40]}, and the model takes text only")
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
      private_class_method :check, :message, :named, :thought, :role?, :content, :parts, :part, :blind, :calls, :problem
    end
  end
end
