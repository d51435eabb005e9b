# frozen_string_literal: true

require "json"

module Candle
  module MCP
    # Results of tools, as the protocol writes them and as a {Tool} returns them.
    #
    # @api private
    module Content
      module_function

      # @param result [Hash] of `tools/call`
      # @param tool [String] its name
      # @return [Hash, String] structured content where there is some, otherwise the text
      # @raise [MCPToolError] when the tool failed, with its text
      # @raise [MCPError] for what is not a result
      def read(result, tool)
        content = result["content"] || []
        unless content.is_a?(Array) && content.all?(Hash)
          raise MCPError, "the result of the tool #{tool} has invalid content: #{Arguments.shown(content)}"
        end

        text = content.map { |item| text(item) }.join("\n")
        if result["isError"]
          raise MCPToolError, "the tool #{tool} failed: #{text.empty? ? "it does not say why" : text}"
        end

        result["structuredContent"].is_a?(Hash) ? result["structuredContent"] : text
      end

      # @param value [Object] what a {Tool} returned
      # @return [Hash] a result of `tools/call`
      # @raise [InvalidInputError] for what can't be written as JSON
      def write(value)
        return { "content" => [text_item(value)], "isError" => false } if value.is_a?(String)

        text = Arguments.json(value, "the result")
        written = { "content" => [text_item(text)], "isError" => false }
        value.is_a?(Hash) ? written.merge("structuredContent" => JSON.parse(text)) : written
      end

      # @param message [String] why a tool failed
      # @return [Hash] a result of `tools/call`
      def failure(message)
        { "content" => [text_item(message)], "isError" => true }
      end

      def text(item)
        case item["type"]
        when "text" then item["text"].to_s
        when "resource" then resource(item["resource"])
        when "resource_link" then item["uri"].to_s
        else "[#{[item["type"], item["mimeType"]].compact.join(" ")}]"
        end
      end
      private_class_method :text

      def resource(resource)
        return "[resource]" unless resource.is_a?(Hash)

        (resource["text"] || "[resource #{resource["uri"]}]").to_s
      end
      private_class_method :resource

      def text_item(text)
        { "type" => "text", "text" => TextInput.utf8(text, "the result") }
      end
      private_class_method :text_item
    end
  end
end
